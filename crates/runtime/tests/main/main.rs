//! Tests of the runtime through its public interface, in one binary.

mod real_files;
mod real_net;
mod real_tasks;
mod sim_disk;
mod sim_world;
mod support;
