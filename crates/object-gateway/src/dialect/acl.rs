//! ACLs: what requests give, what is stored, what is shown. Of buckets, and of objects.
//!
//! An ACL is stored complete, with the owner's permissions: S3 lets an owner give them up. No grants
//! at all stand for the owner's full control alone, as in a new bucket.

use http::StatusCode;
use http::header::HeaderMap;
use object_proto::{Grant, Grantee, Permission, User, UserId};
use s3s::dto::{self, AccessControlPolicy, Type};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::state::{State, not_implemented};
use crate::errors::{coded, s3_error};

/// Grants of an ACL at most, as in S3.
const GRANTS_MAX: usize = 100;
/// Names an ACL.
const CANNED: &str = "x-amz-acl";
/// Headers that grant something.
const HEADERS: [(&str, Permission); 5] = [
    ("x-amz-grant-read", Permission::Read),
    ("x-amz-grant-write", Permission::Write),
    ("x-amz-grant-read-acp", Permission::ReadAcl),
    ("x-amz-grant-write-acp", Permission::WriteAcl),
    ("x-amz-grant-full-control", Permission::Full),
];
const PERMISSIONS: [(&str, Permission); 5] = [
    (dto::Permission::FULL_CONTROL, Permission::Full),
    (dto::Permission::READ, Permission::Read),
    (dto::Permission::READ_ACP, Permission::ReadAcl),
    (dto::Permission::WRITE, Permission::Write),
    (dto::Permission::WRITE_ACP, Permission::WriteAcl),
];
static GROUPS: [(&str, Grantee); 3] = [
    ("http://acs.amazonaws.com/groups/global/AllUsers", Grantee::All),
    ("http://acs.amazonaws.com/groups/global/AuthenticatedUsers", Grantee::Authenticated),
    ("http://acs.amazonaws.com/groups/s3/LogDelivery", Grantee::LogDelivery),
];

/// Whose the bucket or object is that an ACL is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owners<'a> {
    /// Its owner.
    pub own: &'a UserId,
    /// Owner of an object's bucket; none for a bucket.
    pub bucket: Option<&'a UserId>,
}

/// An ACL, as a request gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AskedAcl {
    /// By a name.
    Canned(String),
    /// By its grants.
    Grants(Vec<(Named, Permission)>),
}

/// Whom a request grants something, as it says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Named {
    /// A user's canonical ID.
    Id(String),
    /// A user's mail address.
    Mail(String),
    /// A group's URI.
    Group(String),
}

fn malformed() -> S3Error {
    coded(
        "MalformedACLError",
        StatusCode::BAD_REQUEST,
        "The XML you provided was not well-formed or did not validate against our published schema",
    )
}

fn invalid(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

impl AskedAcl {
    /// That of a request's headers, if they give one.
    pub fn of_headers(headers: &HeaderMap) -> S3Result<Option<AskedAcl>> {
        let mut grants = Vec::new();
        for (name, permission) in HEADERS {
            for value in headers.get_all(name) {
                let value = value.to_str().map_err(|_| unreadable())?;
                grants.extend(named_in(value)?.into_iter().map(|named| (named, permission)));
            }
        }
        let has_grants = HEADERS.iter().any(|(name, _)| headers.contains_key(*name));
        match (headers.get(CANNED), has_grants) {
            (Some(_), true) => Err(S3Error::with_message(
                S3ErrorCode::InvalidRequest,
                "Specifying both Canned ACLs and Header Grants is not allowed",
            )),
            (Some(name), false) => {
                let name = name.to_str().map_err(|_| invalid("The canned ACL is no text"))?;
                Ok(Some(AskedAcl::Canned(name.to_owned())))
            }
            (None, true) => Ok(Some(AskedAcl::Grants(bounded(grants)?))),
            (None, false) => Ok(None),
        }
    }

    /// That of a document, which names the owner as it is.
    pub fn of_document(document: AccessControlPolicy, owner: &UserId) -> S3Result<AskedAcl> {
        let named = document.owner.and_then(|owner| owner.id).ok_or_else(malformed)?;
        if named != owner.as_str() {
            return Err(S3Error::with_message(
                S3ErrorCode::AccessDenied,
                "Access Denied: the ACL names another owner, and owners do not change",
            ));
        }
        let grants = document.grants.ok_or_else(malformed)?.into_iter().map(|grant| {
            let permission = grant.permission.ok_or_else(malformed)?;
            let known = PERMISSIONS.iter().find(|(name, _)| *name == permission.as_str());
            let (_, permission) = known.ok_or_else(malformed)?;
            Ok((Named::of_dto(grant.grantee.ok_or_else(malformed)?)?, *permission))
        });
        Ok(AskedAcl::Grants(bounded(grants.collect::<S3Result<Vec<_>>>()?)?))
    }

    /// It grants this user full control, and nothing to others.
    pub fn is_full_control_of(&self, owner: &UserId) -> bool {
        match self {
            AskedAcl::Canned(name) => name == "bucket-owner-full-control",
            AskedAcl::Grants(grants) => {
                let is_own = |(named, permission): &(Named, Permission)| {
                    matches!(named, Named::Id(id) if id == owner.as_str())
                        && *permission == Permission::Full
                };
                !grants.is_empty() && grants.iter().all(is_own)
            }
        }
    }

    /// The ACL as it is stored.
    pub async fn stored(self, state: &State, owners: Owners<'_>) -> S3Result<Vec<Grant>> {
        let grants = match self {
            AskedAcl::Canned(name) => canned(&name, owners)?,
            AskedAcl::Grants(asked) => {
                let is_other = |named: &Named| match named {
                    Named::Id(id) => id != owners.own.as_str(),
                    Named::Mail(_) => true,
                    Named::Group(_) => false,
                };
                let users = match asked.iter().any(|(named, _)| is_other(named)) {
                    true => state.backend.users().await.map_err(s3_error)?,
                    false => Vec::new(),
                };
                let grant = |(named, permission): (Named, Permission)| {
                    Ok(Grant { grantee: named.found(owners.own, &users)?, permission })
                };
                asked.into_iter().map(grant).collect::<S3Result<Vec<_>>>()?
            }
        };
        Ok(compact(grants, owners.own))
    }
}

fn bounded<T>(grants: Vec<T>) -> S3Result<Vec<T>> {
    match grants.len() <= GRANTS_MAX {
        true => Ok(grants),
        false => Err(coded(
            "MalformedACLError",
            StatusCode::BAD_REQUEST,
            format!("An ACL has {GRANTS_MAX} grants at most"),
        )),
    }
}

fn unreadable() -> S3Error {
    invalid("Argument format not recognized")
}

/// Grantees of a header: `id="...", uri="...", emailAddress="..."`, with quotes or without.
fn named_in(header: &str) -> S3Result<Vec<Named>> {
    let mut is_quoted = false;
    let parts = header.split(|c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    let named = parts.map(|part| {
        let (name, value) = part.split_once('=').ok_or_else(unreadable)?;
        let value = value.trim();
        let value = match value.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"').ok_or_else(unreadable)?,
            None => value,
        };
        if value.is_empty() || value.contains('"') {
            return Err(unreadable());
        }
        match name.trim().to_ascii_lowercase().as_str() {
            "id" => Ok(Named::Id(value.to_owned())),
            "uri" => Ok(Named::Group(value.to_owned())),
            "emailaddress" => Ok(Named::Mail(value.to_owned())),
            _ => Err(unreadable()),
        }
    });
    named.collect()
}

impl Named {
    fn of_dto(grantee: dto::Grantee) -> S3Result<Named> {
        let dto::Grantee { type_, id, email_address, uri, .. } = grantee;
        let named = match type_.as_str() {
            Type::CANONICAL_USER => id.map(Named::Id),
            Type::AMAZON_CUSTOMER_BY_EMAIL => email_address.map(Named::Mail),
            Type::GROUP => uri.map(Named::Group),
            _ => None,
        };
        named.ok_or_else(malformed)
    }

    fn found(&self, owner: &UserId, users: &[User]) -> S3Result<Grantee> {
        match self {
            Named::Id(id) if id == owner.as_str() => Ok(Grantee::User(owner.clone())),
            Named::Id(id) => {
                let user = users.iter().find(|user| user.id.as_str() == id);
                let user = user.ok_or_else(|| invalid("Invalid id"))?;
                Ok(Grantee::User(user.id.clone()))
            }
            Named::Mail(mail) => {
                let is_of =
                    |user: &&User| !mail.is_empty() && user.email.eq_ignore_ascii_case(mail);
                let mut of = users.iter().filter(is_of);
                match (of.next(), of.next()) {
                    (Some(user), None) => Ok(Grantee::User(user.id.clone())),
                    (Some(_), Some(_)) => Err(coded(
                        "AmbiguousGrantByEmailAddress",
                        StatusCode::BAD_REQUEST,
                        "The email address you provided is associated with more than one account.",
                    )),
                    (None, _) => Err(coded(
                        "UnresolvableGrantByEmailAddress",
                        StatusCode::BAD_REQUEST,
                        "The e-mail address you provided does not match any account on record.",
                    )),
                }
            }
            Named::Group(uri) => {
                let known = GROUPS.iter().find(|(known, _)| known == uri);
                known.map(|(_, group)| group.clone()).ok_or_else(|| invalid("Invalid group uri"))
            }
        }
    }
}

fn full(owner: &UserId) -> Grant {
    Grant { grantee: Grantee::User(owner.clone()), permission: Permission::Full }
}

/// Grants of an ACL by its name. On a bucket, those for owners of buckets grant its owner all, and that is all.
fn canned(name: &str, owners: Owners<'_>) -> S3Result<Vec<Grant>> {
    let bucket_owner = owners.bucket.filter(|bucket| *bucket != owners.own);
    let bucket_owner = bucket_owner.map(|owner| Grantee::User(owner.clone()));
    let more = match name {
        "private" => vec![],
        "public-read" => vec![(Some(Grantee::All), Permission::Read)],
        "public-read-write" => {
            vec![(Some(Grantee::All), Permission::Read), (Some(Grantee::All), Permission::Write)]
        }
        "authenticated-read" => vec![(Some(Grantee::Authenticated), Permission::Read)],
        "bucket-owner-read" => vec![(bucket_owner, Permission::Read)],
        "bucket-owner-full-control" => vec![(bucket_owner, Permission::Full)],
        "log-delivery-write" if owners.bucket.is_none() => vec![
            (Some(Grantee::LogDelivery), Permission::Write),
            (Some(Grantee::LogDelivery), Permission::ReadAcl),
        ],
        "aws-exec-read" => return Err(not_implemented("The canned ACL aws-exec-read")),
        _ => return Err(invalid("The canned ACL is not known")),
    };
    let more = more
        .into_iter()
        .filter_map(|(to, permission)| to.map(|grantee| Grant { grantee, permission }));
    Ok([full(owners.own)].into_iter().chain(more).collect())
}

/// Grants as they are stored: each once, and none for the owner's full control alone. An owner that
/// keeps nothing may still read and change the ACL, as in S3.
fn compact(grants: Vec<Grant>, owner: &UserId) -> Vec<Grant> {
    let mut kept: Vec<Grant> = Vec::new();
    for grant in grants {
        if !kept.contains(&grant) {
            kept.push(grant);
        }
    }
    if kept.is_empty() {
        let own = |permission| Grant { grantee: Grantee::User(owner.clone()), permission };
        return vec![own(Permission::ReadAcl), own(Permission::WriteAcl)];
    }
    if kept == [full(owner)] {
        kept.clear();
    }
    kept
}

/// Grants of a stored ACL, complete.
pub fn complete(stored: &[Grant], owner: &UserId) -> Vec<Grant> {
    match stored.is_empty() {
        true => vec![full(owner)],
        false => stored.to_vec(),
    }
}

/// It grants something to others than the owner.
pub fn has_others(stored: &[Grant], owner: &UserId) -> bool {
    stored.iter().any(|grant| !matches!(&grant.grantee, Grantee::User(user) if user == owner))
}

/// It grants something to all, or to all users.
pub fn is_public(stored: &[Grant]) -> bool {
    stored.iter().any(|grant| matches!(grant.grantee, Grantee::All | Grantee::Authenticated))
}

/// A stored ACL as answers show it.
pub fn shown(stored: &[Grant], owner: &UserId, users: &[User]) -> Vec<dto::Grant> {
    let show = |Grant { grantee, permission }| {
        let group = GROUPS.iter().find(|(_, group)| *group == grantee);
        let (id, display_name) = match &grantee {
            Grantee::User(user) => (Some(user.as_str().to_owned()), display_name(user, users)),
            _ => (None, None),
        };
        let kind = if group.is_some() { Type::GROUP } else { Type::CANONICAL_USER };
        let name = PERMISSIONS.iter().find(|(_, other)| *other == permission);
        dto::Grant {
            grantee: Some(dto::Grantee {
                id,
                display_name,
                type_: Type::from_static(kind),
                email_address: None,
                uri: group.map(|(uri, _)| (*uri).to_owned()),
            }),
            permission: name.map(|(name, _)| dto::Permission::from_static(name)),
        }
    };
    let mut grants = complete(stored, owner);
    // S3 promises no order. Clients that take grants by their place have groups first.
    grants.sort_by_key(|grant| matches!(grant.grantee, Grantee::User(_)));
    grants.into_iter().map(show).collect()
}

/// An owner as ACLs show it.
pub fn shown_owner(owner: &UserId, users: &[User]) -> dto::Owner {
    dto::Owner { id: Some(owner.as_str().to_owned()), display_name: display_name(owner, users) }
}

/// Users that were removed have no name any more.
fn display_name(id: &UserId, users: &[User]) -> Option<String> {
    users.iter().find(|user| user.id == *id).map(|user| user.display_name.clone())
}

#[cfg(test)]
mod tests;
