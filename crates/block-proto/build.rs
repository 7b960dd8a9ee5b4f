//! Compiles the control messages without protoc (design D1).

use std::path::Path;

fn main() {
    let (root, file) = ("proto", "proto/block.proto");
    println!("cargo:rerun-if-changed={file}");
    println!("cargo:rerun-if-changed=build.rs");
    let messages = protox::compile([Path::new(file)], [Path::new(root)])
        .unwrap_or_else(|error| panic!("{file} does not compile: {error}"));
    prost_build::Config::new()
        .compile_fds(messages)
        .unwrap_or_else(|error| panic!("no code for {file}: {error}"));
}
