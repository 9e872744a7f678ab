# Every target installs what it needs: see scripts/setup.sh.

# A shell that never read the profile of rustup finds cargo all the same.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help demo demo-frames demo-tags setup check test proof busy bench rxe conformance long-conformance explore memory mutants cargo-mutants fuzz soak fmt doc book package install-c action

help:
	@echo 'make demo     receives 200,000 messages from two processes; DEMO_PATH=verbs does so through libibverbs'
	@echo 'make demo-tags  receives by tag, from several senders; DEMO_SOFTWARE=1 matches in the library'
	@echo 'make demo-frames  receives market data on an A and a B feed, and finds the gaps; DEMO_PATH=verbs'
	@echo 'make check    format, clippy, unit tests and the direct path: after an edit'
	@echo 'make test     installs what is missing and runs the test-suite'
	@echo 'make proof    sanitizers, mutants, fuzzing, explorers, conformance, other platforms, Soft-RoCE'
	@echo 'make busy N=20  runs the test-suite beside N busy loops; NICENESS=10 lets it finish earlier; STEPS="direct verbs" these steps'
	@echo 'make bench    counts instructions and takes times beside stock libmlx5'
	@echo 'make rxe      runs the tests of the verbs path on Soft-RoCE, in a virtual machine'
	@echo 'make conformance N=100000    compares doorbell with libmlx5 under random operations; SEED=number'
	@echo 'make long-conformance  1,000,000 operations each with the installed libmlx5 and with that of Debian 13, which it unpacks'
	@echo 'make mutants  puts in errors of the kind that drivers have, and sees that tests catch them'
	@echo 'make cargo-mutants  changes mlx5-wire and mlx5-ring in every way cargo-mutants knows; FILE=mlx5/ring/src/srq.rs one file'
	@echo 'make explore  goes through every state of queues of up to eight slots'
	@echo 'make memory   runs the tests under AddressSanitizer, and conformance under valgrind'
	@echo 'make fuzz N=10000000    gives inputs that a fuzzer makes to the device and to the reader of CQs; TARGET=name, SEED=number'
	@echo 'make soak N=100000000    100,000 connections that come and go; 10,000,000 requests and N messages over a link that fails in every way'
	@echo 'make install-c PREFIX=/usr/local  installs library, header and pkg-config file for C programs that attach objects'
	@echo 'make action   runs the steps of the GitHub action in clean systems of Debian 12 and 13; needs root'
	@echo 'make setup    only installs what is missing'
	@echo 'make fmt      formats the sources'
	@echo 'make doc      builds the documentation of the crates'
	@echo 'make book     renders the book in docs to target/book'
	@echo 'make package  makes the packages of the crates, and builds what is in them and nothing else'
	@echo
	@echo 'cargo xtask   lists the steps of check, test and proof; cargo xtask --filter NAME STEP runs a part of one'

setup:
	@scripts/setup.sh test

demo:
	@scripts/setup.sh build
	@scripts/demo.sh

demo-frames:
	@scripts/setup.sh build
	@scripts/demo-frames.sh

demo-tags:
	@scripts/setup.sh build
	@scripts/demo-tags.sh

# Two of these together, as `make test proof`, are one run with one result.
RINGS := $(filter check test proof, $(MAKECMDGOALS))

check test proof: setup
	@[ $@ != $(firstword $(RINGS)) ] || cargo xtask $(RINGS)

busy: setup
	@cargo xtask --busy $(or $(N),20) --niceness $(or $(NICENESS),0) $(or $(STEPS),test)

bench:
	@scripts/setup.sh bench
	@benches/run.sh

rxe:
	@scripts/setup.sh build
	@scripts/rxe/run.sh

conformance:
	@scripts/setup.sh build
	@scripts/conformance.sh $(or $(N),100000) $(SEED)

long-conformance:
	@scripts/setup.sh build
	@cargo xtask --long long-conformance newer-libmlx5

mutants:
	@scripts/setup.sh build
	@cargo xtask mutants

cargo-mutants:
	@scripts/setup.sh build
	@scripts/cargo-mutants.sh $(FILE)

explore:
	@scripts/setup.sh build
	@cargo xtask --long explore

memory:
	@scripts/setup.sh bench
	@cargo xtask --long asan valgrind

fuzz:
	@scripts/setup.sh test
	@scripts/fuzz.sh $(or $(N),10000000) $(TARGET)

soak:
	@scripts/setup.sh build
	@cargo xtask --long soak
	@scripts/soak.sh $(or $(N),100000000)

fmt:
	cargo fmt --all

doc: setup
	cargo doc --workspace --no-deps

book:
	@scripts/book.sh

package: setup
	@cargo xtask package

install-c:
	@scripts/setup.sh build
	@scripts/install-c.sh $(or $(PREFIX),/usr/local)

action:
	@scripts/setup.sh action
	@scripts/action-check.sh
