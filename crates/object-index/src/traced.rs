//! Requests as operations of their traces (D12), in gateways and where they are answered.

use std::net::SocketAddr;

use base::TraceId;
use metrics::{Fact, Outcome, Step};
use object_proto::Error;
use runtime::Env;

/// Runs the work of a request as an operation of its trace, which came from `peer` or begins here.
pub(crate) async fn as_operation<T>(
    env: &Env,
    (trace, name, peer): (TraceId, &'static str, Option<SocketAddr>),
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let span = env.begin(trace, name, peer);
    // In a box, since each `async` layer around it would hold it and move it again.
    let worked = span.clone().follow(Box::pin(work)).await;
    let outcome = match &worked {
        Ok(_) => Outcome::Done,
        Err(error) => Outcome::Failed(error.kind()),
    };
    span.note(Step::Answered, env.now().as_nanos(), Fact::None);
    env.end(&span, outcome);
    worked
}
