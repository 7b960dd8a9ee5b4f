//! Tests of the client: the writer's protocol against an oracle, and the whole client against a
//! cluster in memory under faults.

mod backup;
mod blocked;
mod changes;
mod chase;
mod chase_model;
mod cluster;
mod coded;
mod ec_model;
mod explorer;
mod fake;
mod holder;
mod idle;
mod large;
mod memory;
mod model;
mod policies;
mod pushed;
mod tail;
mod threads;
