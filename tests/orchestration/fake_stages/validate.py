from tests.orchestration.fake_stages import act
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main
from tokenmill.workspace import write_atomic, write_json


def validate(context: StageContext) -> StageResult:
    snapshot = context.spec.inputs["snapshot"]
    outputs = {
        "verdict": "pass",
        "validation": f"validations/{snapshot}/r0",
        "rules": "r0",
        "snapshot": snapshot,
        "unigram_entropy_nats": 5.5,
        "sentences": ["all is well"],
        "markdown": f"validations/{snapshot}/r0/verdict.md",
        "table": f"validations/{snapshot}/r0/rules.json",
    }
    write_atomic(context.workspace.root / outputs["markdown"], b"# all is well\n")
    write_json(context.workspace.root / outputs["table"], [{"rule": "sums", "outcome": "pass"}])
    result = act(context, StageResult(status="completed", outputs=outputs))
    if result.status != "failed":
        return result
    failed = outputs | {"verdict": "fail", "user_error": True}
    return StageResult(status="failed", message="too many unknown tokens", outputs=failed)


if __name__ == "__main__":
    main(StageName.VALIDATE, validate)
