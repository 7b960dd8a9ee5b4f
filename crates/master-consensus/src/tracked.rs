//! A table that knows which of its rows have changed, for checkpoints (`protocols.md` 4.1).

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use crate::Rows;

/// An ordered map with the keys whose rows have changed since they were last taken. Equal to
/// another when the rows are.
#[derive(Clone, Debug)]
pub struct Tracked<K, V> {
    rows: BTreeMap<K, V>,
    changed: BTreeSet<K>,
}

impl<K, V> Default for Tracked<K, V> {
    fn default() -> Self {
        Tracked { rows: BTreeMap::new(), changed: BTreeSet::new() }
    }
}

impl<K, V: PartialEq> PartialEq for Tracked<K, V>
where
    K: PartialEq,
{
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl<K: Eq, V: Eq> Eq for Tracked<K, V> {}

impl<K, V> Deref for Tracked<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.rows
    }
}

impl<'a, K, V> IntoIterator for &'a Tracked<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::collections::btree_map::Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

impl<K: Ord + Clone, V> Tracked<K, V> {
    fn note(&mut self, key: &K) {
        if !self.changed.contains(key) {
            self.changed.insert(key.clone());
        }
    }

    /// A row, to be changed.
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        if !self.changed.contains(key) {
            let (known, _) = self.rows.get_key_value(key)?;
            let known = known.clone();
            self.changed.insert(known);
        }
        self.rows.get_mut(key)
    }

    /// Adds or replaces a row; what it was.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.note(&key);
        self.rows.insert(key, value)
    }

    /// Removes a row.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let (key, value) = self.rows.remove_entry(key)?;
        self.changed.insert(key);
        Some(value)
    }

    /// A row, made when it is absent.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.note(&key);
        self.rows.entry(key).or_insert_with(make)
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.changed.extend(std::mem::take(&mut self.rows).into_keys());
    }

    /// Adds a row that a checkpoint has: it has not changed.
    pub fn load(&mut self, key: K, value: V) -> Option<V> {
        self.rows.insert(key, value)
    }

    /// A row that was loaded, to be completed: it has not changed.
    pub fn loaded_mut(&mut self, key: &K) -> Option<&mut V> {
        self.rows.get_mut(key)
    }

    /// Gives changed rows to `put`, removed ones as such, until `rows` is full; true when more is
    /// left.
    pub fn take_changes(
        &mut self,
        rows: &mut Rows,
        mut put: impl FnMut(&mut Rows, &K, Option<&V>),
    ) -> bool {
        while let Some(key) = self.changed.first() {
            if rows.is_full() {
                return true;
            }
            put(rows, key, self.rows.get(key));
            self.changed.pop_first();
        }
        false
    }

    /// One of the changed keys, with its row if there is one. See [`Tracked::taken`].
    pub fn first_changed(&mut self) -> Option<(&K, Option<&mut V>)> {
        let key = self.changed.first()?;
        Some((key, self.rows.get_mut(key)))
    }

    /// The row of [`Tracked::first_changed`] has been taken.
    pub fn taken(&mut self) {
        self.changed.pop_first();
    }

    /// Keys of all rows, and of rows that were removed since they were last taken.
    pub fn into_known(self) -> BTreeSet<K> {
        let mut known = self.changed;
        known.extend(self.rows.into_keys());
        known
    }

    /// Removes a row of a table that is not needed any more.
    pub fn shed(&mut self) -> Option<(K, V)> {
        self.rows.pop_first()
    }
}
