//! `craton user`: users of S3, their access keys and policies.

use std::path::PathBuf;
use std::sync::Arc;

use object_index::Service;
use object_proto::{AccessKey, Quota, User, UserChange, UserId};
use serde::Serialize;

use super::args::{ADMIN, CreateArgs, KeyCommand, UserCommand};
use super::quota::{self, ShownQuota};
use super::{
    ADMIN_WAIT, LOOK, failed, json_time, note_key, policy, reached_soon, with_service,
    wrapping_keys,
};
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::{print_json, print_line, print_table, shell_word, table};

/// A user, as JSON.
#[derive(Serialize)]
struct Shown {
    user: String,
    id: String,
    display_name: String,
    email: String,
    admin: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<ShownQuota>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<ShownKey>>,
}

/// An access key, as JSON.
#[derive(Serialize)]
struct ShownKey {
    access_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_key: Option<String>,
    enabled: bool,
    expires: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    policy: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Shown {
    fn of(user: &User, keys: Option<Vec<ShownKey>>) -> Shown {
        Shown {
            user: user.name.clone(),
            id: user.id.as_str().to_owned(),
            display_name: user.display_name.clone(),
            email: user.email.clone(),
            admin: user.admin,
            quota: ShownQuota::of(user.quota),
            keys,
        }
    }
}

impl ShownKey {
    fn of(key: &AccessKey) -> ShownKey {
        ShownKey {
            access_key: key.id.clone(),
            secret_key: None,
            enabled: key.enabled,
            expires: key.expires_us.map(json_time),
            policy: key.policy.is_some(),
        }
    }
}

/// Runs `craton user`.
pub fn run(connection: &Connection, command: UserCommand) -> Done {
    match command {
        UserCommand::Create(args) => create(connection, &args),
        UserCommand::Ls { json } => list(connection, json),
        UserCommand::Info { name, json } => info(connection, &name, json),
        UserCommand::Rm { name } => {
            change(connection, &name, UserChange::Remove)?;
            print_line(&format!("{name} is removed, with its access keys"))
        }
        UserCommand::Key { command } => key(connection, command),
        UserCommand::Policy { name, set, clear } => {
            set_policy(connection, &name, set.as_ref(), clear)
        }
        UserCommand::Env { name, s3_keys } => print_env(connection, &name, s3_keys.as_ref()),
    }
}

fn about(name: &str) -> String {
    format!("user {name}")
}

async fn find(service: &Service, name: &str) -> Result<User, Failure> {
    service.user(name).await.map_err(|error| failed(&about(name), error))
}

/// Changes a user that is named.
fn change(connection: &Connection, name: &str, build: impl FnOnce(UserId) -> UserChange) -> Done {
    with_service(connection, async |service| {
        let user = find(service, name).await?;
        let changed = service.change_user(build(user.id)).await;
        changed.map_err(|error| failed(&about(name), error))
    })
}

fn create(connection: &Connection, args: &CreateArgs) -> Done {
    let keys = wrapping_keys(connection, args.s3_keys.as_ref())?;
    let policy = args.policy.as_deref().map(policy::read_identity).transpose()?;
    let secret = args.key.secret()?;
    let (user, made) = with_service(connection, async |service| {
        let env = service.env();
        let made = args.key.make(env, &keys, secret.as_deref(), None, None)?;
        note_key(service, &keys).await?;
        let id = args.id.clone().unwrap_or_else(|| {
            let mut bytes = [0; 32];
            env.fill_secret(&mut bytes);
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        });
        let user = User {
            id: UserId::new(id),
            name: args.name.clone(),
            display_name: args.display_name.clone().unwrap_or_else(|| args.name.clone()),
            email: args.email.clone().unwrap_or_default(),
            admin: args.admin,
            policy: policy.clone(),
            quota: Quota::default(),
        };
        let (new, key) = (Box::new(user.clone()), Box::new(made.key.clone()));
        let created = service.change_user(UserChange::Create { user: new, key }).await;
        created.map_err(|error| failed(&about(&args.name), error))?;
        Ok((user, made))
    })?;
    let shown = ShownKey {
        access_key: made.key.id,
        secret_key: Some(made.secret),
        enabled: true,
        expires: None,
        policy: false,
    };
    if args.json {
        return print_json(&Shown::of(&user, Some(vec![shown])));
    }
    print_line(&format!("{} is made, with the ID {}", user.name, user.id))?;
    print_key(&shown)
}

fn print_key(key: &ShownKey) -> Done {
    print_line(&format!("access key: {}", key.access_key))?;
    print_line(&format!(
        "secret key: {} (it is not shown again)",
        key.secret_key.as_deref().unwrap_or_default()
    ))
}

fn list(connection: &Connection, json: bool) -> Done {
    let users = with_service(connection, async |service| {
        service.users().await.map_err(|error| failed("users", error))
    })?;
    if json {
        let shown: Vec<Shown> = users.iter().map(|user| Shown::of(user, None)).collect();
        return print_json(&shown);
    }
    let mut out = table(&["user", "display name", "email", "admin", "id"]);
    for user in users {
        let admin = if user.admin { "yes" } else { "" };
        let id = user.id.as_str().to_owned();
        out.add_row([user.name, user.display_name, user.email, admin.to_owned(), id]);
    }
    print_table(out, &[])
}

fn info(connection: &Connection, name: &str, json: bool) -> Done {
    let (user, keys) = with_service(connection, async |service| {
        let user = find(service, name).await?;
        let keys = service.keys(user.id.clone()).await;
        Ok((user, keys.map_err(|error| failed(&about(name), error))?))
    })?;
    if json {
        return print_json(&Shown::of(&user, Some(keys.iter().map(ShownKey::of).collect())));
    }
    let or_none = |text: &str| if text.is_empty() { "none" } else { text }.to_owned();
    print_line(&format!("user: {}", user.name))?;
    print_line(&format!("id: {}", user.id))?;
    print_line(&format!("display name: {}", user.display_name))?;
    print_line(&format!("email: {}", or_none(&user.email)))?;
    print_line(&format!("administrator: {}", if user.admin { "yes" } else { "no" }))?;
    let policy = if user.policy.is_some() { "'craton user policy' shows it" } else { "none" };
    print_line(&format!("policy: {policy}"))?;
    print_line(&format!("quota of its buckets: {}", quota::text(user.quota)))?;
    let mut out = table(&["access key", "state", "expires", "policy"]);
    for key in &keys {
        let state = if key.enabled { "enabled" } else { "disabled" };
        let expires = key.expires_us.map_or_else(|| "never".to_owned(), json_time);
        let policy = if key.policy.is_some() { "its own" } else { "" };
        out.add_row([key.id.as_str(), state, &expires, policy]);
    }
    print_table(out, &[])
}

fn key(connection: &Connection, command: KeyCommand) -> Done {
    match command {
        KeyCommand::Add { name, key, policy, expires, s3_keys, json } => {
            let keys = wrapping_keys(connection, s3_keys.as_ref())?;
            let secret = key.secret()?;
            let (expires, made) = with_service(connection, async |service| {
                let env = service.env();
                let now_us = env.unix_time().as_nanos() / 1000;
                let expires = expires.map(|seconds| now_us + seconds * 1_000_000);
                let (secret, policy) = (secret.as_deref(), policy.as_deref());
                let made = key.make(env, &keys, secret, policy, expires)?;
                note_key(service, &keys).await?;
                let user = find(service, &name).await?.id;
                let add = UserChange::AddKey { user, key: Box::new(made.key.clone()) };
                let added = service.change_user(add).await;
                added.map_err(|error| failed(&about(&name), error))?;
                Ok((expires, made))
            })?;
            let shown = ShownKey {
                access_key: made.key.id,
                secret_key: Some(made.secret),
                enabled: true,
                expires: expires.map(json_time),
                policy: policy.is_some(),
            };
            if json { print_json(&shown) } else { print_key(&shown) }
        }
        KeyCommand::Rm { name, key } => {
            change(connection, &name, |user| UserChange::RemoveKey { user, key: key.clone() })?;
            print_line(&format!("access key {key} of {name} is removed"))
        }
        KeyCommand::Enable { name, key } => enable(connection, &name, &key, true),
        KeyCommand::Disable { name, key } => enable(connection, &name, &key, false),
    }
}

fn enable(connection: &Connection, name: &str, key: &str, enabled: bool) -> Done {
    let key_id = key.to_owned();
    change(connection, name, |user| UserChange::EnableKey { user, key: key_id, enabled })?;
    let state = if enabled { "enabled" } else { "disabled" };
    print_line(&format!("access key {key} of {name} is {state}"))
}

fn set_policy(connection: &Connection, name: &str, set: Option<&PathBuf>, clear: bool) -> Done {
    if set.is_none() && !clear {
        let user = with_service(connection, async |service| find(service, name).await)?;
        let text = user.policy.ok_or_else(|| Failure::failed(format!("{name} has no policy")))?;
        return print_line(text.trim_end());
    }
    let policy = set.map(|path| policy::read_identity(path)).transpose()?;
    change(connection, name, |user| UserChange::SetPolicy { user, policy })?;
    let done = if clear { "has no policy any more" } else { "goes by its policy now" };
    print_line(&format!("{name} {done}"))
}

/// The first key of a user that is served, without end and policy.
async fn first_key(service: &Service, name: &str) -> Result<Arc<AccessKey>, Failure> {
    let user = find(service, name).await?;
    let refused = |error| failed(&about(name), error);
    let now_us = service.env().unix_time().as_nanos() / 1000;
    let good = |key: &AccessKey| {
        key.enabled && key.policy.is_none() && key.expires_us.is_none_or(|end| now_us < end)
    };
    let all = service.keys(user.id).await.map_err(refused)?;
    let id = all.into_iter().find(good).map(|key| key.id);
    let id = id.ok_or_else(|| {
        Failure::failed(format!(
            "{name} has no access key that is enabled, without end and policy: 'craton user key \
             add {name}'"
        ))
    })?;
    let key = service.access_key(&id).await.map_err(refused)?;
    key.ok_or_else(|| Failure::failed("the access key was removed just now"))
}

/// Prints that key, and how S3 is reached.
fn print_env(connection: &Connection, name: &str, s3_keys: Option<&PathBuf>) -> Done {
    let access = reached_soon(connection)?;
    let keys = wrapping_keys(connection, s3_keys)?;
    let key = with_service(connection, async |service| {
        let env = service.env();
        let end = env.now() + ADMIN_WAIT;
        loop {
            match first_key(service, name).await {
                // At a first start the file that says how S3 is reached is there before the administrator is.
                Err(_) if name == ADMIN && env.now() < end => env.sleep(LOOK).await,
                done => return done,
            }
        }
    })?;
    let secret = keys.unwrap(&key.id, &key.wrapped_secret);
    let secret = secret.map_err(|error| Failure::setup(error.to_string()))?;
    print_line(&format!("export AWS_ENDPOINT_URL={}", shell_word(&access.endpoint)))?;
    // SDKs read the first, the command line of AWS and Python's libraries the second.
    for variable in ["AWS_REGION", "AWS_DEFAULT_REGION"] {
        print_line(&format!("export {variable}={}", shell_word(&access.region)))?;
    }
    print_line(&format!("export AWS_ACCESS_KEY_ID={}", shell_word(&key.id)))?;
    print_line(&format!("export AWS_SECRET_ACCESS_KEY={}", shell_word(&secret)))
}
