//! What `craton volume check` finds: no scenario of the block service damages data for good, so
//! each finding is a violation.

use block_client::VolumeExports;
use block_proto::limits::VOLUMES_PAGE;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeInfo};
use roles::check::check;

/// Volumes, snapshots and clones that are not deleted.
pub(super) async fn list(managers: &Managers) -> Result<Vec<VolumeInfo>, String> {
    let list = BlockRequest::List { after: None, limit: VOLUMES_PAGE };
    match managers.ask(list).await {
        Ok(BlockReply::Volumes { volumes, more: false }) => Ok(volumes),
        other => Err(format!("no list of all volumes: {other:?}")),
    }
}

/// Checks all volumes, snapshots and clones but those of the names `but`.
pub(super) async fn check_all(
    managers: &Managers,
    exports: &VolumeExports,
    but: &[&str],
) -> Result<(), String> {
    let env = managers.client().env();
    for info in list(managers).await? {
        let name = info.spec.name.as_str();
        if but.contains(&name) {
            continue;
        }
        let found = check(managers, exports, &info).await;
        let found = found.map_err(|fault| format!("check of {name}: {fault}"))?;
        if found.findings_count > 0 {
            return Err(format!("check of {name}: {:?}", found.findings));
        }
        if found.blocks > 0 {
            env.mark(match info.parent {
                Some(_) => "stored: a snapshot is whole",
                None => "stored: a volume is whole",
            });
        }
    }
    Ok(())
}
