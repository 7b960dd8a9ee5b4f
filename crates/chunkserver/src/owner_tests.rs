//! Stores that a cluster takes for its own.

use base::{ClusterId, FormationId};
use chunkstore::StoreOwner;

use super::{Home, Verdict, judge};

#[test]
fn stores_of_other_clusters_and_formations_are_foreign() {
    let (cluster, other) = (ClusterId::new(1), ClusterId::new(2));
    let (formation, former) = (FormationId::new(8), FormationId::new(7));
    let home = Home { cluster, formation: Some(formation) };
    let of = |cluster, formation| StoreOwner::Of { cluster, formation };
    for holds in [false, true] {
        assert_eq!(judge(of(cluster, formation), holds, home), Verdict::Own);
        for (owner, named) in [
            (of(other, formation), other.to_string()),
            (of(cluster, former), former.to_string()),
            (of(cluster, FormationId::default()), FormationId::default().to_string()),
        ] {
            let Verdict::Foreign(why) = judge(owner, holds, home) else { panic!("{owner:?}") };
            assert!(why.contains(&named) && why.contains("format"), "{why}");
        }
        assert_eq!(judge(StoreOwner::Fresh, holds, home), Verdict::Join(formation));
    }
    assert_eq!(judge(StoreOwner::Unmarked, true, home), Verdict::Ask(formation));
    assert_eq!(judge(StoreOwner::Unmarked, false, home), Verdict::Join(formation));
    // Masters of an older version say no formation: as before, but for the cluster.
    let old = Home { cluster, formation: None };
    assert_eq!(judge(of(cluster, former), true, old), Verdict::Own);
    assert_eq!(judge(StoreOwner::Unmarked, true, old), Verdict::Own);
    assert!(matches!(judge(of(other, former), true, old), Verdict::Foreign(_)));
}
