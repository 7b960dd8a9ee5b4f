//! A namespace as a map from paths: the usual model of a file system.

use std::collections::BTreeMap;

use wire::control::Policy;

pub type Path = Vec<String>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Thing {
    Dir,
    /// A file, by a number that its names share.
    File(u64),
    Symlink(String),
}

/// Why a change is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum No {
    NotFound,
    Exists,
    Invalid,
}

#[derive(Clone, Default, Debug)]
pub struct Model {
    pub things: BTreeMap<Path, Thing>,
    pub files: u64,
    /// Own policies of directories.
    pub dir_policies: BTreeMap<Path, Policy>,
    pub file_policies: BTreeMap<u64, Policy>,
}

impl Model {
    pub fn is_dir(&self, path: &[String]) -> bool {
        path.is_empty() || self.things.get(path) == Some(&Thing::Dir)
    }

    pub fn names(&self, dir: &[String]) -> Vec<(String, Thing)> {
        let inside = self
            .things
            .iter()
            .filter(|(path, _)| path.len() == dir.len() + 1 && path.starts_with(dir));
        inside.map(|(path, thing)| (path[dir.len()].clone(), thing.clone())).collect()
    }

    pub fn links(&self, file: u64) -> u32 {
        self.things.values().filter(|thing| **thing == Thing::File(file)).count() as u32
    }

    fn parent(&self, path: &Path) -> Result<(), No> {
        if self.is_dir(&path[..path.len() - 1]) { Ok(()) } else { Err(No::NotFound) }
    }

    pub fn add(&mut self, path: &Path, thing: Thing) -> Result<(), No> {
        self.parent(path)?;
        if self.things.contains_key(path) {
            return Err(No::Exists);
        }
        self.things.insert(path.clone(), thing);
        Ok(())
    }

    /// Gives a directory a policy of its own, or takes it away.
    pub fn set_dir_policy(&mut self, path: &Path, policy: Option<Policy>) -> Result<(), No> {
        if !self.is_dir(path) {
            return Err(No::NotFound);
        }
        match policy {
            Some(policy) => self.dir_policies.insert(path.clone(), policy),
            None => self.dir_policies.remove(path),
        };
        Ok(())
    }

    /// With `inherit`, the directory's own policy goes before `policy`.
    pub fn create(
        &mut self,
        path: &Path,
        exclusive: bool,
        (policy, inherit): (Policy, bool),
    ) -> Result<u64, No> {
        if !exclusive && let Some(Thing::File(file)) = self.things.get(path) {
            return Ok(*file);
        }
        self.add(path, Thing::File(self.files + 1))?;
        self.files += 1;
        let own = self.dir_policies.get(&path[..path.len() - 1]).filter(|_| inherit);
        self.file_policies.insert(self.files, own.copied().unwrap_or(policy));
        Ok(self.files)
    }

    pub fn unlink(&mut self, path: &Path) -> Result<(), No> {
        self.parent(path)?;
        match self.things.get(path) {
            None => Err(No::NotFound),
            Some(Thing::Dir) => Err(No::Invalid),
            Some(_) => {
                self.things.remove(path);
                Ok(())
            }
        }
    }

    pub fn rmdir(&mut self, path: &Path) -> Result<(), No> {
        self.parent(path)?;
        match self.things.get(path) {
            None => Err(No::NotFound),
            Some(Thing::Dir) if self.names(path).is_empty() => {
                self.things.remove(path);
                self.dir_policies.remove(path);
                Ok(())
            }
            Some(_) => Err(No::Invalid),
        }
    }

    pub fn rename(&mut self, from: &Path, to: &Path, replace: bool) -> Result<(), No> {
        self.parent(from)?;
        let thing = self.things.get(from).ok_or(No::NotFound)?.clone();
        self.parent(to)?;
        match self.things.get(to) {
            Some(_) if !replace => return Err(No::Exists),
            Some(target) => {
                if (*target == Thing::Dir) != (thing == Thing::Dir) {
                    return Err(No::Invalid);
                }
                let same_file = matches!(target, Thing::File(_)) && *target == thing;
                if from == to || same_file {
                    return Ok(());
                }
            }
            None => {}
        }
        if thing == Thing::Dir && to.starts_with(from) {
            return Err(No::Invalid);
        }
        if self.is_dir(to) && !self.names(to).is_empty() {
            return Err(No::Invalid);
        }
        let moved: Vec<_> =
            self.things.keys().filter(|path| path.starts_with(from)).cloned().collect();
        self.things.remove(to);
        self.dir_policies.remove(to);
        for path in moved {
            let thing = self.things.remove(&path).expect("listed above");
            let policy = self.dir_policies.remove(&path);
            let path: Path = to.iter().chain(&path[from.len()..]).cloned().collect();
            self.dir_policies.extend(policy.map(|policy| (path.clone(), policy)));
            self.things.insert(path, thing);
        }
        Ok(())
    }
}
