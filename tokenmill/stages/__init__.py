"""One `python -m tokenmill.stages.X` a stage: read the spec, call the room that does the work, write the result."""
