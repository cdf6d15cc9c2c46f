from tests.orchestration.fake_stages import act
from tokenmill.canonical import fingerprint
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main


def prepare(context: StageContext) -> StageResult:
    inputs = context.spec.inputs
    if inputs.get("part") == "plan":
        return act(context, StageResult(status="completed", outputs={"plan": "p0", "batches": 5}))
    if inputs.get("part") == "build":
        built = context.workspace.root / "built" / str(inputs["batch"])
        built.parent.mkdir(exist_ok=True)
        built.write_text(inputs["plan"])
        return act(context, StageResult(status="completed", outputs={"built_shards": 1}))
    root = context.roots["corpus.notes"]
    contents = [path.read_text() for path in sorted(root.rglob("*.txt"))]
    context.progress("tokenising", len(contents), len(contents), "documents")
    outputs = {"snapshot": fingerprint(contents), "tokenizer": "t0", "documents": len(contents), "train_tokens": 100}
    return act(context, StageResult(status="completed", outputs=outputs))


if __name__ == "__main__":
    main(StageName.PREPARE, prepare)
