//! Facts of the whole store that change: written to the superblock when it joins a cluster, and
//! before its first rows.

use std::cell::Cell;
use std::rc::Rc;

use base::limits::SECTOR;
use base::{ClusterId, FormationId};
use runtime::Class;

use super::layout::{SUPER_AT, Super};
use super::store::FlashStoreInner;
use crate::contract::{StoreError, StoreOwner};

/// An append that waits until there may be rows, as one of a count.
struct Admitting<'a>(&'a Cell<usize>);

impl Admitting<'_> {
    fn new(count: &Cell<usize>) -> Admitting<'_> {
        count.set(count.get() + 1);
        Admitting(count)
    }
}

impl Drop for Admitting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl FlashStoreInner {
    /// See [`crate::ChunkStore::adopt`].
    pub(crate) async fn adopt(
        self: &Rc<Self>,
        cluster: ClusterId,
        formation: FormationId,
    ) -> Result<(), StoreError> {
        if cluster == ClusterId::default() {
            return Err(StoreError::Invalid("a store joins a cluster that has an identity"));
        }
        let owner = StoreOwner::Of { cluster, formation };
        let join = move |sb: Super| match sb.owner {
            known if known == owner => Ok(sb),
            StoreOwner::Of { .. } => Err(StoreError::Invalid("the store is another cluster's")),
            StoreOwner::Unmarked | StoreOwner::Fresh => Ok(Super { owner, ..sb }),
        };
        self.change_super(join).await
    }

    /// Has the superblock say that there may be rows, before there are: programs that do not read
    /// them refuse the store from then on, by its version.
    pub(crate) async fn admit_rows(self: &Rc<Self>) -> Result<(), StoreError> {
        if self.rows.get() && self.admitting.get() == 0 {
            return Ok(());
        }
        // Appends go on in the order in which they came: none overtakes those that wait.
        let _counted = Admitting::new(&self.admitting);
        let _turn = self.admit_turn.lock().await;
        if self.rows.get() {
            return self.check_open();
        }
        self.change_super(|sb| Ok(Super { rows: true, ..sb })).await
    }

    /// Changes facts in the superblock, one change at a time. It runs to its end, whether or not the
    /// caller stays. A write left behind could land after that of the next change, or after the next
    /// mount.
    async fn change_super(
        self: &Rc<Self>,
        change: impl FnOnce(Super) -> Result<Super, StoreError> + 'static,
    ) -> Result<(), StoreError> {
        self.check_open()?;
        let this = self.clone();
        let task = self.env.spawn(Class::Foreground, "chunkstore superblock", async move {
            let _alone = this.super_turn.lock().await;
            this.check_open()?;
            let before = Super { owner: this.owner.get(), rows: this.rows.get(), ..this.sb };
            let after = change(before)?;
            if after == before {
                return Ok(());
            }
            this.write_super(after).await?;
            if after.rows && !before.rows {
                this.env.mark("chunkstore: first rows");
            }
            this.owner.set(after.owner);
            this.rows.set(after.rows);
            Ok(())
        });
        task.await.unwrap_or(Err(StoreError::Failed))
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
