//! Recording of operations by an [`Env`] (D12): [`metrics::Tracer`] with the node's clock.

use std::net::SocketAddr;
use std::rc::Rc;

use base::TraceId;
use metrics::{Fact, Operation, Outcome, Registry, Span, Step, Tracer};

use crate::env::Env;
use crate::rng::Rng;

/// The tracer of a node. Its trace IDs take nothing from the node's stream of randomness, so
/// that noting more or less changes no simulated run.
pub(crate) fn tracer_of(rng: &Rng, registry: Registry) -> Rc<Tracer> {
    Tracer::new(rng.clone().next_u64(), registry)
}

impl Env {
    /// This node's records of its operations.
    pub fn tracer(&self) -> &Rc<Tracer> {
        &self.0.tracer
    }

    /// The trace of the operation that the running task works for, or a new one.
    pub fn trace(&self) -> TraceId {
        metrics::current().map_or_else(|| self.0.tracer.fresh(), |span| span.trace())
    }

    /// Starts an operation that came from `peer`, or began here.
    pub fn begin(&self, trace: TraceId, name: &'static str, peer: Option<SocketAddr>) -> Span {
        self.0.tracer.begin(trace, name, peer, self.now().as_nanos())
    }

    /// The operation that the running task works for has reached a stage.
    pub fn note(&self, step: Step, fact: Fact) {
        metrics::with_current(|span| span.note(step, self.now().as_nanos(), fact));
    }

    /// Ends an operation; a slow one gets a line in the log.
    pub fn end(&self, span: &Span, outcome: Outcome) {
        if let Some(slow) = span.end(self.now().as_nanos(), outcome) {
            log_slow(&slow);
        }
    }

    /// Runs `work` as an operation that begins here: of the trace that is current, or of a new
    /// one. Within another operation it is a part of that one. `kind` says what an error asks
    /// its receiver to do.
    pub fn operation<T, E>(
        &self,
        name: &'static str,
        kind: impl FnOnce(&E) -> base::Kind,
        work: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<T, E>> {
        // In a box, since each `async` layer around it would hold it twice and move it.
        let work = Box::pin(work);
        async move {
            if metrics::current().is_some_and(|span| !span.is_root()) {
                return work.await;
            }
            let span = self.begin(self.trace(), name, None);
            let result = span.clone().follow(work).await;
            let outcome = match &result {
                Ok(_) => Outcome::Done,
                Err(error) => Outcome::Failed(kind(error)),
            };
            self.end(&span, outcome);
            result
        }
    }
}

fn log_slow(operation: &Operation) {
    let millis = |nanos: u64| nanos as f64 / 1e6;
    let took_ms = millis(operation.took_ns());
    let (stage, waited_ms, fact) = match operation.slowest_stage() {
        Some((stage, wait)) => (stage.step.name(), millis(wait), stage.fact),
        None => ("", 0.0, Fact::None),
    };
    tracing::info!(
        trace = %operation.trace,
        operation = operation.name,
        took_ms,
        stage,
        waited_ms,
        ?fact,
        outcome = ?operation.outcome,
        "slow operation: 'craton trace' shows its stages"
    );
}
