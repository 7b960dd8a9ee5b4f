//! The owner of the store: written to the superblock when it joins a cluster.

use base::limits::SECTOR;
use base::{ClusterId, FormationId};

use super::layout::{SUPER_AT, Super};
use super::store::FlashStoreInner;
use crate::contract::{StoreError, StoreOwner};

impl FlashStoreInner {
    /// Writes both superblocks again, one after the other: at every moment one of them is whole.
    pub(crate) async fn adopt(
        &self,
        cluster: ClusterId,
        formation: FormationId,
    ) -> Result<(), StoreError> {
        if cluster == ClusterId::default() {
            return Err(StoreError::Invalid("a store joins a cluster that has an identity"));
        }
        self.check_open()?;
        let owner = StoreOwner::Of { cluster, formation };
        match self.owner.get() {
            known if known == owner => return Ok(()),
            StoreOwner::Of { .. } => {
                return Err(StoreError::Invalid("the store is another cluster's"));
            }
            StoreOwner::Unmarked | StoreOwner::Fresh => {}
        }
        let sb = Super { owner, ..self.sb };
        for at in SUPER_AT {
            let mut block = self.alloc(SECTOR).await;
            sb.encode(&mut block);
            self.write_durable(at, block.freeze()).await?;
            // The other copy is not given up for one that was written somewhere else.
            let block = self.read_device(at, SECTOR).await?;
            if Super::decode(&block) != Ok(sb) {
                self.fail(&"a superblock does not read back as it was written");
                return Err(StoreError::Failed);
            }
        }
        self.owner.set(owner);
        Ok(())
    }
}
