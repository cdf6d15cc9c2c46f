from tests.orchestration.fake_stages import act
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main
from tokenmill.workspace import read_json, write_atomic


def report(context: StageContext) -> StageResult:
    invocation, run = context.spec.inputs["invocation"], context.spec.inputs["run_id"]
    base = context.workspace.run(run) if run else context.workspace.invocation(invocation)
    outcome = read_json(context.workspace.invocation(invocation) / "invocation.json")["outcome"]
    line = f"{context.spec.pipeline_name}: {outcome}"
    write_atomic(base / "report" / "report.md", f"# {line}\n".encode())
    folder = context.workspace.relative(base / "report")
    outputs = {"first_line": line, "folder": folder, "markdown": f"{folder}/report.md", "tables": {}}
    return act(context, StageResult(status="completed", outputs=outputs))


if __name__ == "__main__":
    main(StageName.REPORT, report)
