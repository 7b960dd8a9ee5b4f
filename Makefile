# `make demo` shows the system at work, `make test` runs every test; `make demo-block` shows a
# volume with a file system and a database on it.

.PHONY: build demo demo-block test test-long clean

build:
	cargo build --release --locked -p craton

demo:
	scripts/demo.sh

demo-block:
	scripts/demo-block.sh

test:
	scripts/prepare.sh
	cargo xtask test

test-long:
	scripts/prepare.sh
	cargo xtask test --long

clean:
	cargo clean
