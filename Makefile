# The two commands: `make demo` shows the system at work, `make test` runs every test.

.PHONY: build demo test test-long clean

build:
	cargo build --release --locked -p craton

demo:
	scripts/demo.sh

test:
	scripts/prepare.sh
	cargo xtask test

test-long:
	scripts/prepare.sh
	cargo xtask test --long

clean:
	cargo clean
