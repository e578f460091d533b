"""The source's virtual channels: opening, scanning, selecting by owner, salvaging, and reading their bytes in place."""
