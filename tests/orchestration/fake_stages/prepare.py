from tests.orchestration.fake_stages import act
from tokenmill.canonical import fingerprint
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main


def prepare(context: StageContext) -> StageResult:
    root = context.roots["corpus.notes"]
    contents = [path.read_text() for path in sorted(root.rglob("*.txt"))]
    context.progress("tokenising", len(contents), len(contents), "documents")
    outputs = {"snapshot": fingerprint(contents), "tokenizer": "t0", "documents": len(contents), "train_tokens": 100}
    return act(context, StageResult(status="completed", outputs=outputs))


if __name__ == "__main__":
    main(StageName.PREPARE, prepare)
