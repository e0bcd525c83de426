.PHONY: install check lint format jobs jobs-in-sync test test-fast site poc consortium

install:
	pip install -c constraints.txt -e ".[dev]"

check: lint test-fast

lint:
	ruff check .
	ruff format --check .
	mypy

format:
	ruff check --fix .
	ruff format .

jobs:
	fedpeft jobs

jobs-in-sync:
	fedpeft jobs --check

test:
	pytest

test-fast:
	pytest -n 2 -m "not slow and not simulator and not consortium"

site:
	mkdocs build --strict

poc:
	provisioning/poc.sh

consortium:
	provisioning/consortium.sh
