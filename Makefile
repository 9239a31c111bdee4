# make lab    set up what is needed, run lesson 01, say how to go on (OPEN=1: open it in JupyterLab)
# make test   set up what is needed, run every test
# make quick  the tests without notebooks and browser
# make gpu-check  on a machine with a GPU and torch: what only a GPU can show, recorded, in eight minutes; installs nothing
# Any other Python: make lab PYTHON=python3.12

PYTHON ?= python3
PY = .venv/bin/python
PYTEST = $(PY) -m pytest -q
NBVAL = --nbval --nbval-current-env --nbval-sanitize-with=tests/nbval_sanitize.cfg
COMMA = ,
.DEFAULT_GOAL = help
.PHONY: help lab test quick gpu-check build lint clean

help:
	@sed -n 's/^# //p' Makefile

# $(call install,extras): a virtual environment with these extras, at the versions in constraints.txt. What was installed
# is noted at the very end, together with the folder and the two files it came from: an interrupted installation, a
# changed file and a copied clone are each put right by the next make.
define install
	@source="$$(cat pyproject.toml constraints.txt | cksum) $$PWD"; \
	if grep -qxF "$(1) $$source" .venv/installed 2>/dev/null && $(PY) -c "" 2>/dev/null; then exit 0; fi; \
	if ! $(PY) -c "import sys, pip; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; then \
		$(PYTHON) -c "" 2>/dev/null || { echo "There is no $(PYTHON) here. Install Python 3.10 or newer" \
			"(https://www.python.org/downloads/), or name yours: make PYTHON=python3.12" >&2; exit 2; }; \
		$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10))" || { echo "labkit needs Python 3.10 or newer;" \
			"$(PYTHON) is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=python3.12" >&2; exit 2; }; \
		$(PYTHON) -c "import venv, ensurepip" 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments." \
			"On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 2; }; \
		$(PYTHON) -m venv --clear .venv || exit 2; \
	fi; \
	echo "Installing labkit with [$(1)] into .venv: minutes the first time, about 2 GB (more with a GPU) ..."; \
	rm -f .venv/installed; \
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(1)]" && \
	printf '%s\n' "lab $$source" "$(1) $$source" > .venv/installed
endef

lab:
	$(call install,lab)
	@code=0; $(PY) -m labkit.cli run 01 || code=$$?; \
	if [ -n "$(OPEN)" ]; then exec $(PY) -m labkit.cli lab 01; fi; \
	echo "Now work through it in JupyterLab: make lab OPEN=1 (or .venv/bin/labkit lab 00, to start at the beginning)."; \
	exit $$code

# The notebooks of solutions/ measure time and must hold on a busy machine: two at once, and nothing else beside them.
# What is marked so runs alone.
test:
	$(call install,lab$(COMMA)test)
	@code=0; \
	$(PYTEST) -n 2 --dist loadfile $(NBVAL) solutions || code=1; \
	$(PYTEST) -m alone tests || code=1; \
	$(PYTEST) -n 2 --dist loadfile -m "not alone" tests || code=1; \
	exit $$code

quick:
	$(call install,lab$(COMMA)test)
	@$(PYTEST) -n 2 --dist loadfile -m "not notebook and not browser and not slow" tests

# The Python that has torch: the one named, else that of make lab, else the machine's own.
gpu-check:
	@"$(or $(if $(findstring file,$(origin PYTHON)),,$(PYTHON)),$(wildcard $(PY)),python3)" -m labkit.gpu_check

build:
	$(call install,lab$(COMMA)test)
	@$(PY) -m labkit.cli build

lint:
	$(call install,lab$(COMMA)test)
	@$(PY) -m ruff check .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
