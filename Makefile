# Every target installs what it needs: see scripts/setup.sh.

# A shell that never read the profile of rustup finds cargo all the same.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help demo demo-frames demo-tags demo-trade setup check test proof busy bench rxe vm vm-consumers vm-fabric vm-shell conformance long-conformance explore memory mutants cargo-mutants semver fuzz soak fmt doc book package install-c action

help:
	@echo 'make demo                         Receive 200,000 messages from two processes (DEMO_PATH=verbs: through libibverbs)'
	@echo 'make demo-tags                    Receive by tag from several senders (DEMO_SOFTWARE=1: matched by the library; LINK=roce)'
	@echo 'make demo-frames                  Receive market data on an A and a B feed and find the gaps (DEMO_PATH=verbs, DEMO_LOSS=0.01)'
	@echo 'make demo-trade                   Answer prices with orders, and measure the time from tick to trade (DEMO_PATH=verbs, DEMO_LOSS=0.01)'
	@echo
	@echo 'make check                        After an edit: format, clippy, unit tests, documents, the direct path'
	@echo 'make test                         Install missing packages and run the test suite'
	@echo 'make proof                        Run sanitizers, mutants, fuzzing, explorers, conformance, other platforms, Soft-RoCE'
	@echo 'make busy N=20                    Run the test suite beside N busy loops (NICENESS=10, STEPS="direct verbs")'
	@echo 'make bench                        Count instructions and measure times of the processor, beside libmlx5'
	@echo 'cargo bench -p doorbell-benches --bench device    Measure messages through a ConnectX, or else soft-mlx5'
	@echo 'make rxe                          Run the tests of the verbs path on Soft-RoCE in a virtual machine'
	@echo 'make vm                           Run programs and the direct path above the mlx5 driver of a kernel (KERNEL=trixie, LINK=roce)'
	@echo 'make vm-consumers                 Run what uses verbs in the kernel, as NVMe over RDMA, in the same machine'
	@echo 'make vm-fabric                    Connect two virtual machines and a process on a fabric that loses packets'
	@echo 'make vm-shell                     Start the same machine with a shell'
	@echo 'make conformance N=100000         Compare doorbell with libmlx5 under N random operations (SEED=number)'
	@echo 'make long-conformance             The same, 1,000,000 with the installed libmlx5 and with that of Debian 13'
	@echo 'make mutants                      Insert known driver errors and check that tests catch them'
	@echo 'make cargo-mutants                Run cargo-mutants on mlx5-wire and mlx5-ring (FILE=mlx5/ring/src/srq.rs)'
	@echo 'make semver                       List changes of the interface that break programs (BASE=revision)'
	@echo 'make explore                      Check every state of queues of up to four slots'
	@echo 'make memory                       Run the tests under AddressSanitizer, and conformance under valgrind'
	@echo 'make fuzz N=10000000              Fuzz the device and the CQ readers (TARGET=name, SEED=number)'
	@echo 'make soak N=100000000             100,000 connections; 10,000,000 requests and N messages over a faulty link'
	@echo
	@echo 'make install-c PREFIX=/usr/local  Install library, header and pkg-config file for C programs'
	@echo 'make action                       Run the steps of the GitHub action in clean Debian 12 and 13 (needs root)'
	@echo 'make setup                        Install missing packages'
	@echo 'make fmt                          Format the sources'
	@echo 'make doc                          Build the rustdoc of all crates'
	@echo 'make book                         Render the book to target/book'
	@echo 'make package                      Package the crates and build each package by itself'
	@echo
	@echo 'cargo xtask                       List the steps of check, test and proof; --filter NAME STEP runs a part'

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

demo-trade:
	@scripts/setup.sh build
	@scripts/demo-trade.sh

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

vm:
	@scripts/setup.sh test
	@scripts/vm/run.sh

vm-consumers:
	@scripts/setup.sh build
	@scripts/vm/run.sh consumers

vm-fabric:
	@scripts/setup.sh test
	@scripts/vm/run.sh fabric

vm-shell:
	@scripts/setup.sh build
	@scripts/vm/run.sh shell

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

semver:
	@scripts/setup.sh build
	@scripts/semver.sh $(BASE)

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
