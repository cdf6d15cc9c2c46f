"""tokenmill: the engine. It prepares token shards, validates, trains and accounts; it knows nothing of Prefect."""
