//! Users and their access keys, in the catalog (`object-protocols.md` 11.2). One change of them is made
//! at a time: there are few.

use std::collections::BTreeSet;

use object_proto::limits::{KEYS_PER_USER_MAX, POLICY_MAX, USERS_MAX};
use object_proto::{
    AccessKey, CatalogReply, Error, KeptName, NewKey, Quota, RequestHead, User, UserChange, UserId,
};

use crate::answer_pages::{keys_reply, users_reply};
use crate::catalog::{Catalog, buckets_of, users_of};
use crate::decisions::damaged;
use crate::fields::TEXT_MAX;
use crate::keys::{ACCESS_KEY, BUCKET, USER, read_text_key, reply_key, text_key};
use crate::row::{KeyRow, decode_user, encode_stamp, encode_user};

/// Rows that a change puts, or removes.
type Rows = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// What a change of users and keys comes to.
struct Decided {
    rows: Rows,
    /// What gateways are to ask for again.
    names: BTreeSet<KeptName>,
    /// The user's quota from now on; none when it stays.
    quota: Option<Quota>,
}

impl Decided {
    /// All quotas stay.
    fn of(rows: Rows, names: BTreeSet<KeptName>) -> Decided {
        Decided { rows, names, quota: None }
    }
}

/// A row that cannot be read back would hold up all users.
fn check_texts<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Error> {
    match texts.into_iter().all(|text| text.len() <= TEXT_MAX) {
        true => Ok(()),
        false => Err(Error::Invalid {
            message: format!("names, IDs and secrets of users have {TEXT_MAX} bytes at most"),
        }),
    }
}

fn check_policy(policy: Option<&String>) -> Result<(), Error> {
    match policy.is_some_and(|policy| policy.len() > POLICY_MAX) {
        true => Err(Error::Invalid { message: format!("a policy has {POLICY_MAX} bytes at most") }),
        false => Ok(()),
    }
}

fn key_row(user: &UserId, key: &NewKey) -> (Vec<u8>, Option<Vec<u8>>) {
    let row = KeyRow {
        user: user.clone(),
        wrapped_secret: key.wrapped_secret.clone(),
        enabled: true,
        expires_us: key.expires_us,
        policy: key.policy.clone(),
    };
    (text_key(ACCESS_KEY, &key.id), Some(row.encode()))
}

impl Catalog {
    /// All users.
    async fn all_users(&self) -> Result<Vec<User>, Error> {
        let mut users = users_of(&self.decisions).await?;
        users.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(users)
    }

    /// IDs and rows of a user's access keys.
    async fn key_rows(&self, user: &UserId) -> Result<Vec<(String, KeyRow)>, Error> {
        let mut keys = Vec::new();
        for (key, value) in self.decisions.all(&[ACCESS_KEY]).await? {
            let row = read_text_key(&key).zip(KeyRow::decode(&value));
            let (id, row) = row.ok_or_else(|| damaged("an access key's row"))?;
            if row.user == *user {
                keys.push((id.to_owned(), row));
            }
        }
        Ok(keys)
    }

    /// A user by its ID.
    pub(crate) async fn user(&self, id: &UserId) -> Result<Option<User>, Error> {
        let Some(row) = self.decisions.durable(&text_key(USER, id.as_str())).await? else {
            return Ok(None);
        };
        decode_user(id.as_str(), &row).map(Some).ok_or_else(|| damaged("a user's row"))
    }

    /// Users without their policies, all or those with names above one; a page of them where they are many.
    pub(crate) async fn users(&self, behind: Option<&str>) -> Result<CatalogReply, Error> {
        let mut users = self.all_users().await?;
        users.iter_mut().for_each(|user| user.policy = None);
        Ok(users_reply(users, behind))
    }

    /// A user by its name.
    pub(crate) async fn user_of_name(&self, name: &str) -> Result<CatalogReply, Error> {
        let user = self.all_users().await?.into_iter().find(|user| user.name == name);
        Ok(CatalogReply::User(user.map(Box::new)))
    }

    /// An access key.
    pub(crate) async fn key(&self, id: &str) -> Result<Option<AccessKey>, Error> {
        let row = self.decisions.durable(&text_key(ACCESS_KEY, id)).await?;
        let Some(row) = row else { return Ok(None) };
        let row = KeyRow::decode(&row).ok_or_else(|| damaged("an access key's row"))?;
        let user = self.user(&row.user).await?;
        let user = user.ok_or_else(|| damaged("the row of an access key's user"))?;
        Ok(Some(row.into_key(id, user)))
    }

    /// A user's access keys without their secrets, all or those with IDs above one; a page of them where they are
    /// long.
    pub(crate) async fn keys_of(
        &self,
        id: &UserId,
        behind: Option<&str>,
    ) -> Result<CatalogReply, Error> {
        let user = self.user(id).await?.ok_or(Error::NoSuchUser)?;
        let keys = self.key_rows(id).await?.into_iter().map(|(id, row)| AccessKey {
            wrapped_secret: Vec::new(),
            ..row.into_key(&id, user.clone())
        });
        Ok(keys_reply(keys.collect(), behind))
    }

    /// Changes users and keys; behind the answer no gateway goes by what was before.
    pub(crate) async fn change_user(
        &self,
        head: &RequestHead,
        change: &UserChange,
    ) -> Result<(), Error> {
        let reply = reply_key(head.session, head.number);
        let held = self.decisions.lock(&[USER]).await;
        // A bucket of the user may be being made.
        let held_user = self.decisions.lock(&text_key(USER, change.user().as_str())).await;
        if self.decisions.durable(&reply).await?.is_none() {
            let Decided { rows, names, quota } = match self.decide_user(change).await {
                Ok(decided) => decided,
                Err(error) => {
                    self.decisions.settled_for_refusal(self.decisions.last()).await?;
                    self.check_lease()?;
                    return Err(error);
                }
            };
            self.check_submit(head)?;
            let (_, basis) = self.decisions.submit(|batch, stamp| {
                for (key, value) in &rows {
                    match value {
                        Some(value) => batch.put(key, value),
                        None => batch.delete(key),
                    };
                }
                batch.put(&reply, &encode_stamp(stamp));
            })?;
            self.decisions.settled(basis).await?;
            if let Some(quota) = quota {
                self.quotas.set_user(change.user(), quota);
            }
            self.watchers.note(names);
        }
        drop((held, held_user));
        if change.quota(Quota::default()).is_some() {
            self.bound_buckets(change.user()).await?;
        }
        self.watchers.settled().await;
        Ok(())
    }

    /// What a change comes to.
    async fn decide_user(&self, change: &UserChange) -> Result<Decided, Error> {
        let id = change.user();
        if let UserChange::Create { user, key } = change {
            let texts = [user.id.as_str(), &user.name, &user.display_name, &user.email];
            check_texts(texts.map(str::as_bytes))?;
            check_policy(user.policy.as_ref())?;
            let users = self.all_users().await?;
            if users.len() >= USERS_MAX {
                return Err(Error::TooManyUsers);
            }
            if users.iter().any(|other| other.id == *id || other.name == user.name) {
                return Err(Error::NameTaken);
            }
            let row = (text_key(USER, id.as_str()), Some(encode_user(user)));
            let rows = vec![row, self.new_key(id, key).await?];
            return Ok(Decided::of(rows, BTreeSet::new()));
        }
        let user = self.user(id).await?.ok_or(Error::NoSuchUser)?;
        if let Some(quota) = change.quota(user.quota) {
            let row = encode_user(&User { quota, ..user });
            let rows = vec![(text_key(USER, id.as_str()), Some(row))];
            // Gateways hear of it by the rooms of buckets.
            return Ok(Decided { quota: Some(quota), ..Decided::of(rows, BTreeSet::new()) });
        }
        let keys = self.key_rows(id).await?;
        let all_keys = || keys.iter().map(|(key, _)| KeptName::Key(key.clone())).collect();
        let own_key = |id: &String| {
            let found = keys.iter().find(|(key, _)| key == id);
            found.map(|(_, row)| row.clone()).ok_or(Error::NoSuchAccessKey)
        };
        match change {
            UserChange::Create { .. }
            | UserChange::SetQuota { .. }
            | UserChange::SetQuotaObjects { .. }
            | UserChange::SetQuotaBytes { .. } => unreachable!("it was decided above"),
            UserChange::Remove(_) if self.bucket_count(id) > 0 => Err(Error::UserHasBuckets),
            UserChange::Remove(_) => {
                let mut rows: Rows = vec![(text_key(USER, id.as_str()), None)];
                rows.extend(keys.iter().map(|(key, _)| (text_key(ACCESS_KEY, key), None)));
                Ok(Decided::of(rows, all_keys()))
            }
            UserChange::SetPolicy { policy, .. } => {
                check_policy(policy.as_ref())?;
                let user = User { policy: policy.clone(), ..user };
                let row = (text_key(USER, id.as_str()), Some(encode_user(&user)));
                Ok(Decided::of(vec![row], all_keys()))
            }
            UserChange::AddKey { .. } if keys.len() >= KEYS_PER_USER_MAX => {
                Err(Error::TooManyUsers)
            }
            UserChange::AddKey { key, .. } => {
                Ok(Decided::of(vec![self.new_key(id, key).await?], BTreeSet::new()))
            }
            UserChange::RemoveKey { key, .. } => {
                own_key(key)?;
                let name = KeptName::Key(key.clone());
                Ok(Decided::of(vec![(text_key(ACCESS_KEY, key), None)], [name].into()))
            }
            UserChange::EnableKey { key, enabled, .. } => {
                let row = KeyRow { enabled: *enabled, ..own_key(key)? };
                let row = (text_key(ACCESS_KEY, key), Some(row.encode()));
                Ok(Decided::of(vec![row], [KeptName::Key(key.clone())].into()))
            }
        }
    }

    /// A user's buckets are under its quota from now on, or leave it. Each is held, so that its own quota is
    /// the one on record; the user is not: a bucket that is being made has its name before its owner.
    async fn bound_buckets(&self, user: &UserId) -> Result<(), Error> {
        for row in buckets_of(&self.decisions).await? {
            if row.bucket.owner != *user {
                continue;
            }
            let _held = self.decisions.lock(&text_key(BUCKET, row.bucket.name.as_str())).await;
            match self.held_bucket(&row.bucket.name).await {
                Ok(row) => self.quotas.set_bucket(&row.bucket, row.settings.quota),
                Err(Error::NoSuchBucket) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The row of a key whose ID is new.
    async fn new_key(
        &self,
        user: &UserId,
        key: &NewKey,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), Error> {
        check_texts([key.id.as_bytes(), &key.wrapped_secret])?;
        check_policy(key.policy.as_ref())?;
        match self.decisions.durable(&text_key(ACCESS_KEY, &key.id)).await? {
            Some(_) => Err(Error::NameTaken),
            None => Ok(key_row(user, key)),
        }
    }
}
