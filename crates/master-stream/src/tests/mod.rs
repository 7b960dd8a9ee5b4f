//! Tests of the stream service: the state machine alone, then the service in the simulator.

mod coded;
mod convert;
mod drain;
mod ends;
mod garbage;
mod group;
mod late;
mod log;
mod loss;
mod machine;
mod model;
mod repair;
mod rows;
mod seals;
mod service;
mod sim;
mod terms;
mod writer;
