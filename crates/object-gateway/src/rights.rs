//! [`Rights`]: who may do what (object protocols, 11.2). Everything that is not allowed is denied.
//!
//! In this order: a Deny of any policy; what a key's own policy does not allow; then one of these is enough:
//! an administrator, the user's policy, the bucket's owner that has no policy of its own, the bucket's policy,
//! its ACL or the object's while they count. Blocks of what is public take away what the last two allow all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::header::HeaderValue;
use object_policy::{Policy, PolicyKind, Principal, Verdict};
use object_proto::{
    AccessKey, Backend, BucketId, BucketName, BucketView, Grant, Grantee, ObjectFacts, Ownership,
    Permission, Target, User, UserId, VersionId,
};
use s3s::auth::SecretKey;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::actions::{Action, bucket_permission, object_permission};
use crate::errors::s3_error;
use crate::facts::Facts;
use crate::limits::RULES_MAX;

/// ID of callers without a signature, as owners of what they put.
pub const ANONYMOUS: &str = "anonymous";

/// A policy, ready to decide.
#[derive(Debug)]
pub enum Rule {
    /// There is none.
    None,
    /// It decides.
    Policy {
        /// The policy.
        policy: Box<Policy>,
        /// It asks for tags of objects.
        asks_tags: bool,
    },
    /// It cannot be read, as when a later version has written it: it denies all.
    Flawed,
}

impl Rule {
    /// Of a user or key.
    pub fn of_identity(text: Option<&String>) -> Rule {
        Rule::parse(text, PolicyKind::Identity)
    }

    fn parse(text: Option<&String>, kind: PolicyKind<'_>) -> Rule {
        match text.map(|text| Policy::parse(text, kind)) {
            None => Rule::None,
            Some(Ok(policy)) => {
                let asks_tags = policy.asks_for("s3:existingobjecttag/");
                Rule::Policy { policy: Box::new(policy), asks_tags }
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "a stored policy cannot be read: it denies all");
                Rule::Flawed
            }
        }
    }

    fn decide(&self, request: &object_policy::Request<'_>) -> Verdict {
        match self {
            Rule::None => Verdict::Silent,
            Rule::Policy { policy, .. } => policy.decide(request),
            Rule::Flawed => Verdict::Deny,
        }
    }

    fn may_allow(&self, action: Action, principal: Principal<'_>) -> bool {
        match self {
            Rule::None | Rule::Flawed => false,
            Rule::Policy { policy, .. } => policy.may_allow(action.name(), principal),
        }
    }

    fn is_none(&self) -> bool {
        matches!(self, Rule::None)
    }

    fn asks_tags(&self) -> bool {
        matches!(self, Rule::Policy { asks_tags: true, .. })
    }
}

/// An access key with its secret and its policies.
pub struct Known {
    /// The key.
    pub key: Arc<AccessKey>,
    /// Its user's policy.
    pub user_rule: Rule,
    /// Its own policy.
    pub key_rule: Rule,
    /// Its secret.
    pub secret: SecretKey,
}

/// A bucket with its policy; an extension of requests: the one that a request concerns.
#[derive(Clone, Debug)]
pub struct Place(pub Arc<Ruled>);

/// A bucket that is ready to decide.
#[derive(Debug)]
pub struct Ruled {
    /// The bucket and its settings.
    pub view: Arc<BucketView>,
    rule: Rule,
    is_public: bool,
}

/// Buckets, with their policies as they were read once.
pub struct Places {
    backend: Arc<dyn Backend>,
    known: Mutex<BTreeMap<BucketId, Arc<Ruled>>>,
}

impl Places {
    /// Of this backend.
    pub fn new(backend: Arc<dyn Backend>) -> Places {
        Places { backend, known: Mutex::default() }
    }

    /// The bucket of that name, if it is of the owner that the request expects.
    pub async fn find(&self, name: &str, expected: Option<&HeaderValue>) -> S3Result<Arc<Ruled>> {
        let invalid = |_| S3Error::new(S3ErrorCode::InvalidBucketName);
        let name = BucketName::new(name).map_err(invalid)?;
        let view = self.backend.bucket(name).await.map_err(s3_error)?;
        if expected.is_some_and(|owner| owner != view.bucket.owner.as_str()) {
            return Err(denied());
        }
        Ok(self.ruled(view))
    }

    fn ruled(&self, view: Arc<BucketView>) -> Arc<Ruled> {
        let id = view.bucket.id;
        let known = self.known.lock().expect("no panic while it is held").get(&id).cloned();
        if let Some(ruled) = known.filter(|ruled| Arc::ptr_eq(&ruled.view, &view)) {
            return ruled;
        }
        let kind = PolicyKind::Bucket { name: view.bucket.name.as_str() };
        let rule = Rule::parse(view.settings.policy.as_ref(), kind);
        let is_public = matches!(&rule, Rule::Policy { policy, .. } if policy.is_public());
        let ruled = Arc::new(Ruled { view, rule, is_public });
        let mut known = self.known.lock().expect("no panic while it is held");
        if known.len() >= RULES_MAX {
            known.clear();
        }
        known.insert(id, ruled.clone());
        ruled
    }
}

/// An object that a request asks for.
#[derive(Clone, Copy)]
pub struct AskedObject<'a> {
    /// Where it is.
    pub backend: &'a dyn Backend,
    /// Its key.
    pub target: &'a Target,
    /// The version; the newest for none.
    pub version: Option<VersionId>,
}

/// Errors that say that a key is not there.
pub fn hides_keys(error: &object_proto::Error) -> bool {
    use object_proto::Error;
    matches!(error, Error::NoSuchKey | Error::NoSuchVersion | Error::Marker { .. })
}

/// What a caller may; an extension of requests.
#[derive(Clone)]
pub struct Rights {
    who: Option<Arc<Known>>,
}

impl Rights {
    /// Of the owner of a key, or of a caller without a signature.
    pub fn new(who: Option<Arc<Known>>) -> Rights {
        Rights { who }
    }

    /// The user, if there is a signature.
    pub fn user(&self) -> Option<&User> {
        self.who.as_ref().map(|known| &known.key.user)
    }

    /// The access key, if there is a signature.
    pub fn key(&self) -> Option<&Arc<AccessKey>> {
        self.who.as_ref().map(|known| &known.key)
    }

    /// The user's ID, or [`ANONYMOUS`].
    pub fn id(&self) -> UserId {
        self.user().map_or_else(|| UserId::new(ANONYMOUS), |user| user.id.clone())
    }

    fn principal(&self) -> Principal<'_> {
        match self.user() {
            None => Principal::Anonymous,
            Some(user) => Principal::User { id: user.id.as_str(), name: &user.name },
        }
    }

    /// A policy that concerns the caller in this bucket asks for tags of objects.
    fn asks_tags(&self, place: &Ruled) -> bool {
        let own = self.who.as_ref();
        place.rule.asks_tags()
            || own.is_some_and(|own| own.user_rule.asks_tags() || own.key_rule.asks_tags())
    }

    /// Allows a request that concerns no bucket that is there: any user's, unless its policies say
    /// otherwise.
    pub fn check_service(&self, action: Action, bucket: &str, facts: &Facts<'_>) -> S3Result<()> {
        let known = self.who.as_ref().ok_or_else(denied)?;
        let (principal, context) = (self.principal(), facts);
        let request =
            object_policy::Request { action: action.name(), bucket, key: None, principal, context };
        let user = known.user_rule.decide(&request);
        let key = known.key_rule.decide(&request);
        let is_free = known.user_rule.is_none() || known.key.user.admin;
        let is_allowed = user != Verdict::Deny
            && (known.key_rule.is_none() || key == Verdict::Allow)
            && (is_free || user == Verdict::Allow);
        if is_allowed { Ok(()) } else { Err(denied()) }
    }

    /// Allows a request that concerns a bucket or a key of it.
    pub fn check(
        &self,
        action: Action,
        (place, key): (&Ruled, Option<&str>),
        facts: &Facts<'_>,
    ) -> S3Result<()> {
        match self.may(action, (place, key), facts) {
            true => Ok(()),
            false => Err(denied()),
        }
    }

    /// See [`Rights::check`].
    pub fn may(&self, action: Action, at: (&Ruled, Option<&str>), facts: &Facts<'_>) -> bool {
        self.decide(action, at, facts) == Verdict::Allow
    }

    /// False when no request for the action can be allowed to the caller in the bucket, whatever it concerns
    /// and says.
    pub fn may_ever(&self, action: Action, place: &Ruled) -> bool {
        let Ruled { view, rule, is_public } = place;
        let (principal, user) = (self.principal(), self.user());
        let own = self.who.as_deref();
        if own.is_some_and(|own| {
            !own.key_rule.is_none() && !own.key_rule.may_allow(action, principal)
        }) {
            return false;
        }
        let is_owner = user.is_some_and(|user| user.id == view.bucket.owner);
        let is_restricted = view.settings.public_access.restrict && *is_public && !is_owner;
        user.is_some_and(|user| user.admin)
            || own.is_some_and(|own| own.user_rule.may_allow(action, principal))
            || (is_owner && own.is_some_and(|own| own.user_rule.is_none()))
            || (rule.may_allow(action, principal) && !is_restricted)
            || (view.settings.ownership != Ownership::Enforced
                && bucket_permission(action)
                    .is_some_and(|wanted| self.is_granted(view, &view.settings.acl, wanted)))
    }

    /// Allows a request that concerns an object, whose ACL may allow it too.
    pub async fn check_object(
        &self,
        actions: &[Action],
        place: &Ruled,
        object: AskedObject<'_>,
        mut facts: Facts<'_>,
    ) -> S3Result<()> {
        let AskedObject { backend, target, version } = object;
        let mut found = None;
        if self.asks_tags(place) {
            let is = backend.head(target.clone(), version).await;
            // What is not known may be what a policy denies.
            if let Some(error) = is.as_ref().err().filter(|error| !hides_keys(error)) {
                return Err(s3_error(error.clone()));
            }
            // Of what is not there no condition on tags holds.
            facts.tags = is.as_ref().ok().map(|is| is.object.facts.tags.clone());
            found = Some(is);
        }
        for &action in actions {
            match self.decide(action, (place, Some(target.key.as_str())), &facts) {
                Verdict::Allow => continue,
                Verdict::Deny => return Err(denied()),
                Verdict::Silent => {}
            }
            let counts = place.view.settings.ownership != Ownership::Enforced;
            let wanted = object_permission(action).filter(|_| counts).ok_or_else(denied)?;
            if found.is_none() {
                found = Some(backend.head(target.clone(), version).await);
            }
            match found.as_ref().expect("it was asked for") {
                Ok(is) if self.is_granted_object(&place.view, &is.object.facts, wanted) => {}
                // That it is not there is for those who may list. They may do nothing with it once it is.
                Err(error)
                    if !hides_keys(error) || self.may(Action::LIST, (place, None), &facts) =>
                {
                    return Err(s3_error(error.clone()));
                }
                Ok(_) | Err(_) => return Err(denied()),
            }
        }
        Ok(())
    }

    /// An object's ACL grants the caller a permission. Its owner may read and change the ACL in any case.
    fn is_granted_object(
        &self,
        view: &BucketView,
        facts: &ObjectFacts,
        wanted: Permission,
    ) -> bool {
        let is_owner = self.user().is_some_and(|user| user.id == facts.owner);
        let is_acl = matches!(wanted, Permission::ReadAcl | Permission::WriteAcl);
        (is_owner && (is_acl || facts.acl.is_empty())) || self.is_granted(view, &facts.acl, wanted)
    }

    fn decide(
        &self,
        action: Action,
        (place, key): (&Ruled, Option<&str>),
        facts: &Facts<'_>,
    ) -> Verdict {
        let Ruled { view, rule, is_public } = place;
        let (bucket, settings) = (&view.bucket, &view.settings);
        let (name, principal, context) = (bucket.name.as_str(), self.principal(), facts);
        let request =
            object_policy::Request { action: action.name(), bucket: name, key, principal, context };
        let own = self.who.as_deref();
        let user = self.user();
        let is_admin = user.is_some_and(|user| user.admin);
        let is_owner = user.is_some_and(|user| user.id == bucket.owner);
        let of_bucket = rule.decide(&request);
        let of_user = own.map_or(Verdict::Silent, |own| own.user_rule.decide(&request));
        let of_key = own.map_or(Verdict::Silent, |own| own.key_rule.decide(&request));
        // Else a bucket's policy could shut its owner out for ever.
        let is_way_out = action.concerns_policy() && (is_owner || is_admin);
        let denies = of_bucket == Verdict::Deny && !is_way_out;
        if denies || of_user == Verdict::Deny || of_key == Verdict::Deny {
            return Verdict::Deny;
        }
        if own.is_some_and(|own| !own.key_rule.is_none()) && of_key != Verdict::Allow {
            return Verdict::Deny;
        }
        let is_free_owner = is_owner && own.is_some_and(|own| own.user_rule.is_none());
        let is_restricted = settings.public_access.restrict && *is_public && !is_owner;
        let is_allowed = is_admin
            || of_user == Verdict::Allow
            || is_free_owner
            || (of_bucket == Verdict::Allow && !is_restricted)
            || (settings.ownership != Ownership::Enforced
                && bucket_permission(action)
                    .is_some_and(|wanted| self.is_granted(view, &settings.acl, wanted)));
        if is_allowed { Verdict::Allow } else { Verdict::Silent }
    }

    /// An ACL of the bucket, or of an object of it, grants the caller a permission.
    fn is_granted(&self, view: &BucketView, acl: &[Grant], wanted: Permission) -> bool {
        let user = self.user();
        acl.iter().any(|grant| {
            let is_caller = match &grant.grantee {
                Grantee::User(id) => user.is_some_and(|user| user.id == *id),
                Grantee::All => !view.settings.public_access.ignore_acls,
                Grantee::Authenticated => {
                    user.is_some() && !view.settings.public_access.ignore_acls
                }
                Grantee::LogDelivery => false,
            };
            is_caller && (grant.permission == wanted || grant.permission == Permission::Full)
        })
    }
}

/// S3's error for what is not allowed.
pub fn denied() -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessDenied, "Access Denied")
}
