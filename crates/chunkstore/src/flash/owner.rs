//! Facts of the whole store that change: written to the superblock when it joins a cluster, and
//! before its first rows.

use base::limits::SECTOR;
use base::{ClusterId, FormationId};

use super::layout::{SUPER_AT, Super};
use super::store::FlashStoreInner;
use crate::contract::{StoreError, StoreOwner};

impl FlashStoreInner {
    /// See [`crate::ChunkStore::adopt`].
    pub(crate) async fn adopt(
        &self,
        cluster: ClusterId,
        formation: FormationId,
    ) -> Result<(), StoreError> {
        if cluster == ClusterId::default() {
            return Err(StoreError::Invalid("a store joins a cluster that has an identity"));
        }
        let _alone = self.super_turn.lock().await;
        self.check_open()?;
        let owner = StoreOwner::Of { cluster, formation };
        match self.owner.get() {
            known if known == owner => return Ok(()),
            StoreOwner::Of { .. } => {
                return Err(StoreError::Invalid("the store is another cluster's"));
            }
            StoreOwner::Unmarked | StoreOwner::Fresh => {}
        }
        self.write_super(Super { owner, rows: self.rows.get(), ..self.sb }).await?;
        self.owner.set(owner);
        Ok(())
    }

    /// Has the superblock say that there may be rows, before there are: programs that do not read
    /// them refuse the store from then on, by its version.
    pub(crate) async fn admit_rows(&self) -> Result<(), StoreError> {
        if self.rows.get() {
            return Ok(());
        }
        let _alone = self.super_turn.lock().await;
        self.check_open()?;
        if !self.rows.get() {
            let sb = Super { owner: self.owner.get(), rows: true, ..self.sb };
            self.write_super(sb).await?;
            self.env.mark("chunkstore: first rows");
            self.rows.set(true);
        }
        Ok(())
    }

    /// Writes both superblocks again, one after the other: at every moment one of them is whole.
    async fn write_super(&self, sb: Super) -> Result<(), StoreError> {
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
        Ok(())
    }
}
