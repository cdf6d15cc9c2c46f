from tests.orchestration.fake_stages import act
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main


def train(context: StageContext) -> StageResult:
    """Commits ten more steps at each start, then does as the script says."""
    run = context.workspace.run(context.spec.inputs["run_id"])
    done = len(list((run / "checkpoints").glob("step-*/COMMIT"))) * 10
    if "stuck" not in str(context.spec.pipeline["training"]["sample_prompts"]):
        done += 10
        folder = run / "checkpoints" / f"step-{done:08d}"
        folder.mkdir(parents=True)
        (folder / "COMMIT").write_text(f'{{"step": {done}, "files": {{}}}}')
        context.ledger.write("checkpoint", step=done)
    (run / "samples.json").write_text('[{"prompt": "def ", "text": "def main():"}]')
    outputs = {
        "run_id": run.name,
        "step": done,
        "cursor": done * 4,
        "eval_loss": 2.5,
        "eval_loss_first": 5.0,
        "train_loss": 2.4,
        "nonpadding_tokens": done * 90,
        "processed_tokens": done * 100,
        "model": f"runs/{run.name}/model",
    }
    return act(context, StageResult(status="completed", outputs=outputs))


if __name__ == "__main__":
    main(StageName.TRAIN, train)
