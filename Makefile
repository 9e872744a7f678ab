# Every target installs what it needs: see scripts/setup.sh.

# A shell that never read the profile of rustup finds cargo all the same.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help demo demo-tags setup test bench rxe conformance explore memory mutants cargo-mutants fuzz soak fmt lint doc book package

help:
	@echo 'make demo     receives 200,000 messages from two processes; DEMO_PATH=verbs does so through libibverbs'
	@echo 'make demo-tags  receives by tag, from several senders; DEMO_SOFTWARE=1 matches in the library'
	@echo 'make test     installs what is missing and runs the whole test-suite'
	@echo 'make bench    counts instructions and takes times beside stock libmlx5'
	@echo 'make rxe      runs the tests of the verbs path on Soft-RoCE, in a virtual machine'
	@echo 'make conformance N=100000    compares doorbell with libmlx5 under random operations; SEED=number'
	@echo 'make mutants  puts in errors of the kind that drivers have, and sees that tests catch them'
	@echo 'make cargo-mutants  changes mlx5-wire and mlx5-ring in every way cargo-mutants knows; FILE=mlx5/ring/src/srq.rs one file'
	@echo 'make explore  goes through every state of queues of up to eight slots'
	@echo 'make memory   runs the tests under AddressSanitizer, and conformance under valgrind'
	@echo 'make fuzz N=10000000    gives inputs that a fuzzer makes to the device and to the reader of CQs; TARGET=name, SEED=number'
	@echo 'make soak N=100000000    messages through one SRQ of soft-mlx5 over a link that fails in every way'
	@echo 'make setup    only installs what is missing'
	@echo 'make fmt      formats the sources'
	@echo 'make lint     format, clippy and documentation, warnings being errors'
	@echo 'make doc      builds the documentation of the crates'
	@echo 'make book     renders the book in docs to target/book'
	@echo 'make package  makes the packages of the crates, and builds what is in them and nothing else'

setup:
	@scripts/setup.sh test

demo:
	@scripts/setup.sh build
	@scripts/demo.sh

demo-tags:
	@scripts/setup.sh build
	@scripts/demo-tags.sh

test: setup
	@scripts/test.sh

bench:
	@scripts/setup.sh bench
	@benches/run.sh

rxe:
	@scripts/setup.sh build
	@scripts/rxe/run.sh

conformance:
	@scripts/setup.sh build
	@scripts/conformance.sh $(or $(N),100000) $(SEED)

mutants:
	@scripts/setup.sh build
	@scripts/mutants.sh

cargo-mutants:
	@scripts/setup.sh build
	@scripts/cargo-mutants.sh $(FILE)

explore:
	@scripts/setup.sh build
	@cargo test --release -p mlx5-ring --lib explorer -- --include-ignored --nocapture --test-threads 1

memory:
	@scripts/setup.sh bench
	@scripts/memory.sh asan long
	@scripts/memory.sh valgrind long

fuzz:
	@scripts/setup.sh test
	@scripts/fuzz.sh $(or $(N),10000000) $(TARGET)

soak:
	@scripts/setup.sh build
	@scripts/soak.sh $(or $(N),100000000)

fmt:
	cargo fmt --all

lint: setup
	@scripts/test.sh format clippy doc

doc: setup
	cargo doc --workspace --no-deps

book:
	@scripts/book.sh

package: setup
	@scripts/packages.sh
