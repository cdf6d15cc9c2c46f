"""Read documents from files; refuse bad ones with a reason."""
