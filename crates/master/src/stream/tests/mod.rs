//! Tests of the stream service: the state machine alone, then the service in the simulator.

mod machine;
