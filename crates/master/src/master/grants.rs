//! Grants of the namespace, as stream partitions judge them (decisions 2 and 113).

use std::rc::Rc;
use std::time::Duration;

use master_consensus::service::Router;
use master_namespace::NamespaceService;
use master_namespace::grant::{GrantError, GrantKey};
use master_stream::GrantCheck;
use runtime::Env;

/// Judges grants by the clock on the wall, and asks the partition of the file about those that this
/// clock finds too old or of the future: a master's clock may be wrong.
pub(super) fn grant_check(
    env: &Env,
    router: Rc<Router>,
    timeout: Duration,
    grants: &GrantKey,
) -> GrantCheck {
    let (env, grants) = (env.clone(), grants.clone());
    Rc::new(move |file, grant| {
        let now_s = env.unix_time().as_nanos() / 1_000_000_000;
        let verdict = grants.verify(&grant, file, now_s);
        let (env, router) = (env.clone(), router.clone());
        Box::pin(async move {
            match verdict {
                Ok(()) => Ok(true),
                Err(GrantError::Forged) => Ok(false),
                Err(GrantError::Time) => {
                    env.mark("master: a grant is not of this time");
                    NamespaceService::has_file(&router, file, timeout).await
                }
            }
        })
    })
}
