# make quickstart   sets up .venv, then compresses the embedded network; its page opens if there is a desktop
# make test         sets up .venv with the development tools, then runs linters, type check and all tests
# make lint         linters and type check only
# make fuzz         reads 100,000 damaged files over all formats; takes about ten minutes of one core
# make kills        kills commands at 60 random moments and lets them continue
# make docs         runs every command of the README and of docs/; takes a quarter of an hour of one core
# make memory       measures the memory of large networks against ceilings; takes twenty minutes of one core
# make audit        looks for known vulnerabilities of dependencies (needs a network) and lists their licences
# make packages     builds wheel and sdist, installs the wheel into an empty environment, runs quickstart there
# make pixel4-table rebuilds devices/tables/pixel4.json under qemu; takes about an hour on two cores
# make clean        removes .venv and caches; runs/ stays

PYTHON  ?= python3
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin

PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

# Each stamp is newer than pyproject.toml once its packages are installed.
INSTALLED     := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

# LiteRT for aarch64, for tests that run ARM code under qemu
ARM_WHEEL := $(VENV)/arm-wheel

AUDITOR := $(VENV)/auditor

PIXEL4_MODELS := fashion_resnet fashion_vit resnet20 resnet56 resnet18 mobilenet_v2 efficientnet_lite0

# without a desktop, --open might start a browser of the terminal and wait for it
OPEN ?= $(if $(DISPLAY)$(WAYLAND_DISPLAY)$(filter Darwin,$(shell uname)),--open)

FUZZ_INPUTS ?= 100000
KILLS       ?= 60

.PHONY: quickstart test lint fuzz kills docs memory audit clean debian-packages arm-wheel pixel4-table packages

quickstart: $(INSTALLED)
	$(BIN)/edgecompress quickstart $(OPEN)

# a file's tests stay together, so that its slow fixtures are made once
test: lint debian-packages arm-wheel
	EDGECOMPRESS_TEST_WHEEL=$$(ls $(CURDIR)/$(ARM_WHEEL)/*.whl 2>/dev/null | head -n 1) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(INSTALLED_DEV)
	$(BIN)/python tests/fuzz/run.py --inputs $(FUZZ_INPUTS)

kills: $(INSTALLED_DEV) debian-packages arm-wheel
	EDGECOMPRESS_TEST_WHEEL=$$(ls $(CURDIR)/$(ARM_WHEEL)/*.whl 2>/dev/null | head -n 1) \
		$(BIN)/python tests/soak/kills.py --moments $(KILLS)

docs: $(INSTALLED_DEV) debian-packages arm-wheel
	EDGECOMPRESS_TEST_WHEEL=$$(ls $(CURDIR)/$(ARM_WHEEL)/*.whl 2>/dev/null | head -n 1) \
		$(BIN)/python -m pytest tests/soak/docs_commands.py -q

memory: $(INSTALLED_DEV)
	$(BIN)/python tests/soak/memory.py

# pip-audit has an environment of its own; without --strict it calls clean what it could not look up
audit: $(INSTALLED_DEV)
	$(BIN)/python tests/licences.py
	[ -x $(AUDITOR)/bin/pip-audit ] || \
		{ $(PYTHON) -m venv $(AUDITOR) && $(AUDITOR)/bin/pip install --quiet pip-audit; }
	$(BIN)/python tests/licences.py --requirements > $(AUDITOR)/requirements.txt
	$(AUDITOR)/bin/pip-audit --strict --no-deps --disable-pip --requirement $(AUDITOR)/requirements.txt

packages:
	sh tests/try-packages.sh $(PYTHON)

debian-packages:
	sh tests/install-debian-packages.sh tests/debian-packages.txt
	[ -z "$$CI" ] || sh tests/install-debian-packages.sh tests/debian-packages-ci.txt

arm-wheel: $(INSTALLED_DEV)
	sh tests/fetch-arm-wheel.sh $(BIN)/python $(ARM_WHEEL)

pixel4-table: $(INSTALLED_DEV)
	$(BIN)/edgecompress device prepare emulated-a76
	rm -f devices/tables/pixel4.json
	$(BIN)/edgecompress latency build --device emulated-a76 --output devices/tables/pixel4.json \
		$(PIXEL4_MODELS:%=--model zoo:%)

$(INSTALLED): pyproject.toml | $(BIN)/pip
	@echo "installing into $(VENV); takes a few minutes the first time"
	$(PIP_INSTALL) --editable .
	touch $@

$(INSTALLED_DEV): pyproject.toml | $(BIN)/pip
	@echo "installing into $(VENV), with the tools for tests; takes a few minutes the first time"
	$(PIP_INSTALL) --editable '.[dev]'
	touch $(INSTALLED) $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: this Python cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
