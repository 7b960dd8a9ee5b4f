# `make demo` shows the system at work, `make test` runs every test; `make demo-block` shows a
# volume with a file system and a database on it, `make demo-object` a tree in S3; `make soak` runs fresh seeds of the simulator until
# it is stopped.

.PHONY: build demo demo-block demo-object test test-long soak clean

build:
	cargo build --release --locked -p craton

demo:
	scripts/demo.sh

demo-object:
	scripts/demo-object.sh

demo-block:
	scripts/demo-block.sh

test:
	scripts/prepare.sh
	cargo xtask test

test-long:
	scripts/prepare.sh --long
	cargo xtask test --long

# What the running seeds are recorded under: the commit, with a + when the tree has changes.
COMMIT = $(shell git rev-parse --short=12 HEAD)$(shell git diff --quiet HEAD || echo +)

soak:
	nice -n 19 cargo build --profile soak --locked -p sim --bin craton-sim
	nice -n 19 target/soak/craton-sim soak --commit $(COMMIT) $(SOAK)

clean:
	cargo clean
