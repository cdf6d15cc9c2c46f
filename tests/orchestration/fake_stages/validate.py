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
    if result.status == "replaced":
        good = (context.workspace.root / "last-good").read_text()
        refused = {
            "snapshot": snapshot,
            "validation": outputs["validation"],
            "rules": "r0",
            "sentence": "It is base64.",
        }
        replaced = {"verdict": "fail", "snapshot": good, "validation": f"validations/{good}/r0", "refused": refused}
        return StageResult(status="completed", outputs=outputs | replaced, message="refused, and replaced")
    if result.status != "failed":
        return result
    failed = outputs | {"verdict": "fail", "user_error": True}
    return StageResult(status="failed", message="too many unknown tokens", outputs=failed)


if __name__ == "__main__":
    main(StageName.VALIDATE, validate)
