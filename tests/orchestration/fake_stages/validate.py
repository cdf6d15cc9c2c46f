from tests.orchestration.fake_stages import act
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main


def validate(context: StageContext) -> StageResult:
    snapshot = context.spec.inputs["snapshot"]
    outputs = {
        "verdict": "pass",
        "validation": f"validations/{snapshot}/r0",
        "rules": "r0",
        "snapshot": snapshot,
        "unigram_entropy_nats": 5.5,
        "sentences": ["all is well"],
    }
    result = act(context, StageResult(status="completed", outputs=outputs))
    if result.status != "failed":
        return result
    failed = outputs | {"verdict": "fail", "user_error": True}
    return StageResult(status="failed", message="too many unknown tokens", outputs=failed)


if __name__ == "__main__":
    main(StageName.VALIDATE, validate)
