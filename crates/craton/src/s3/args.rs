//! The command lines of `craton user`, `craton bucket`, `craton range` and `craton kms`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use object_proto::{BucketName, RangeId};
use wire::control::Policy;

use crate::fs::policy::CompressionArg;
use crate::sizes::{parse_seconds, parse_size};

/// The administrator that a first start makes. Buckets are made for it by default.
pub const ADMIN: &str = "admin";

/// `craton user`.
#[derive(Subcommand, Debug)]
pub enum UserCommand {
    /// Make a user with an access key, whose secret is shown this once
    Create(CreateArgs),
    /// List users
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a user with its access keys
    Info {
        /// The user.
        name: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a user that owns no buckets, and its access keys
    Rm {
        /// The user.
        name: String,
    },
    /// Work with a user's access keys
    Key {
        /// What to do.
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Show, set or clear a user's policy
    Policy {
        /// The user.
        name: String,
        /// A file with the policy, in S3's JSON
        #[arg(long, value_name = "FILE", conflicts_with = "clear")]
        set: Option<PathBuf>,
        /// Without a policy it may use its own buckets, and what their owners allow
        #[arg(long)]
        clear: bool,
    },
    /// Print what a shell needs to use S3 as a user: eval "$(craton user env NAME)"
    Env {
        /// The user.
        name: String,
        /// File with the keys that wrap secrets, when no directory is given
        #[arg(long, value_name = "FILE")]
        s3_keys: Option<PathBuf>,
    },
}

/// `craton user create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Its name
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Its canonical ID [default: random]
    #[arg(long, value_parser = parse_id)]
    pub id: Option<String>,
    /// Its name as S3 shows it [default: its name]
    #[arg(long, value_name = "TEXT", value_parser = parse_text)]
    pub display_name: Option<String>,
    /// Its mail address, by which ACLs may name it
    #[arg(long, value_name = "ADDRESS", value_parser = parse_text)]
    pub email: Option<String>,
    /// Its first access key.
    #[command(flatten)]
    pub key: KeyArgs,
    /// It may do all
    #[arg(long)]
    pub admin: bool,
    /// A file with its policy, in S3's JSON
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// File with the keys that wrap secrets, when no directory is given
    #[arg(long, value_name = "FILE")]
    pub s3_keys: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `craton user key`.
#[derive(Subcommand, Debug)]
pub enum KeyCommand {
    /// Make another access key, whose secret is shown this once
    Add {
        /// The user.
        name: String,
        /// The key.
        #[command(flatten)]
        key: KeyArgs,
        /// A file with a policy: nothing but what it allows
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        /// It ends after this time, such as 30d, 12h or 90m [default: never]
        #[arg(long, value_name = "TIME", value_parser = parse_end)]
        expires: Option<u64>,
        /// File with the keys that wrap secrets, when no directory is given
        #[arg(long, value_name = "FILE")]
        s3_keys: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an access key
    Rm {
        /// The user.
        name: String,
        /// The key.
        key: String,
    },
    /// Serve requests that are signed with an access key again
    Enable {
        /// The user.
        name: String,
        /// The key.
        key: String,
    },
    /// Serve no requests that are signed with an access key
    Disable {
        /// The user.
        name: String,
        /// The key.
        key: String,
    },
}

/// A new access key.
#[derive(Args, Clone, Debug)]
pub struct KeyArgs {
    /// Its public part [default: random]
    #[arg(long, value_name = "KEY", requires = "secret", value_parser = parse_key)]
    pub access_key: Option<String>,
    /// Its secret, which all users of this host see while the command runs: better --secret-key-file
    #[arg(
        long,
        value_name = "SECRET",
        requires = "access_key",
        group = "secret",
        conflicts_with = "secret_key_file",
        value_parser = parse_secret
    )]
    pub secret_key: Option<String>,
    /// A file with its secret; '-' is standard input
    #[arg(long, value_name = "FILE", requires = "access_key", group = "secret")]
    pub secret_key_file: Option<PathBuf>,
}

/// `craton bucket`.
#[derive(Subcommand, Debug)]
pub enum BucketCommand {
    /// Make a bucket
    Create {
        /// Its name
        #[arg(value_parser = bucket_name)]
        name: BucketName,
        /// Whose it is
        #[arg(long, value_name = "USER", default_value = ADMIN)]
        owner: String,
        /// With object lock, for good: it keeps versions, and locked ones are not removed
        #[arg(long)]
        lock: bool,
    },
    /// List buckets
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a bucket and its settings
    Info {
        /// The bucket
        #[arg(value_parser = bucket_name)]
        name: BucketName,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an empty bucket
    Rm {
        /// The bucket
        #[arg(value_parser = bucket_name)]
        name: BucketName,
        /// Delete all its objects, versions and delete markers first, unless one is locked
        #[arg(long)]
        force: bool,
    },
    /// Show, set or clear how much a bucket, or all buckets of a user together, may hold
    Quota {
        /// The bucket
        #[arg(
            value_parser = bucket_name, required_unless_present = "user", conflicts_with = "user"
        )]
        name: Option<BucketName>,
        /// All buckets of this user together
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Bytes at most, such as 10G: of objects, older versions and parts of uploads
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "clear")]
        bytes: Option<u64>,
        /// Objects at most, older versions among them
        #[arg(long, value_name = "N", conflicts_with = "clear")]
        objects: Option<u64>,
        /// Any number of both
        #[arg(long)]
        clear: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Change how a bucket's objects are stored, or may be encrypted
    #[command(group(ArgGroup::new("what").required(true).multiple(true)))]
    Set {
        /// The bucket
        #[arg(value_parser = bucket_name)]
        name: BucketName,
        /// How objects of more than 128 KiB are stored: rep1 to rep5, or ecK+M such as ec4+2, as 'craton fs
        /// policy' takes it, or 'default'. New objects at once; those that are there when collection moves them
        #[arg(long, value_name = "POLICY", value_parser = parse_durability, group = "what")]
        durability: Option<Durability>,
        /// How such objects are compressed, unless they are encrypted
        #[arg(long, group = "what")]
        compression: Option<CompressionArg>,
        /// Encryption with keys of clients
        #[arg(long, value_name = "allow|block", group = "what")]
        sse_c: Option<SseC>,
    },
    /// Read and verify all objects, versions and parts of uploads; set counts of files right; bring files back
    /// from the trash in which something lives; remove files that nothing names
    Check {
        /// The bucket
        #[arg(value_parser = bucket_name)]
        name: BucketName,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show, set or clear a bucket's policy
    Policy {
        /// The bucket
        #[arg(value_parser = bucket_name)]
        name: BucketName,
        /// A file with the policy in S3's JSON, 'private' for none, or 'public-read': all may read
        /// its objects, for which its block of what is public is lifted
        #[arg(long, value_name = "FILE|private|public-read", conflicts_with = "clear")]
        set: Option<PathBuf>,
        /// Remove it
        #[arg(long)]
        clear: bool,
    },
}

/// `craton range`.
#[derive(Subcommand, Debug)]
pub enum RangeCommand {
    /// List ranges of buckets, the object servers that own them, and their load
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a range to an object server, and wait until it serves it: no data moves
    Move {
        /// The range, as 'craton range ls' shows it (rng_...)
        #[arg(value_parser = parse_range)]
        range: RangeId,
        /// Name of the object server, as 'craton status' shows it
        server: String,
    },
    /// Split a range in two, and wait until both are served: no data moves
    Split {
        /// The range, as 'craton range ls' shows it (rng_...)
        #[arg(value_parser = parse_range)]
        range: RangeId,
        /// The first key of the upper half, instead of the middle
        #[arg(long, value_name = "BUCKET[/KEY]")]
        at: Option<String>,
    },
}

fn parse_range(text: &str) -> Result<RangeId, String> {
    text.parse().map_err(|error: base::IdError| error.to_string())
}

/// `craton kms`.
#[derive(Subcommand, Debug)]
pub enum KmsCommand {
    /// Make a key that SSE-KMS may name
    Create {
        /// Its name
        name: String,
        /// The key file, when no directory is given
        #[arg(long, value_name = "FILE")]
        s3_keys: Option<PathBuf>,
    },
    /// List keys of the key file
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The key file, when no directory is given
        #[arg(long, value_name = "FILE")]
        s3_keys: Option<PathBuf>,
    },
    /// Make the next version of a key, which wraps what is new
    Rotate {
        /// Its name; 'aws/s3' for the key of secrets, of SSE-S3 and of SSE-KMS without a name
        name: String,
        /// The key file, when no directory is given
        #[arg(long, value_name = "FILE")]
        s3_keys: Option<PathBuf>,
    },
    /// Copy the key file: without it, nothing that is encrypted can be read, and no access key works
    Export {
        /// The copy, which is not there yet
        file: PathBuf,
        /// The key file, when no directory is given
        #[arg(long, value_name = "FILE")]
        s3_keys: Option<PathBuf>,
    },
}

/// What is done about keys of clients (SSE-C).
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SseC {
    /// Objects may be encrypted with them
    Allow,
    /// None is, from now on
    Block,
}

/// How a bucket's objects are stored: none for the service's default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Durability(pub Option<Policy>);

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "default" => Ok(Durability(None)),
        policy => policy.parse().map(Some).map(Durability),
    }
}

/// Ends of keys: days, hours, minutes.
fn parse_end(text: &str) -> Result<u64, String> {
    let units = [("d", 86_400), ("h", 3600), ("m", 60)];
    let time = parse_seconds(text, &units, "30d, 12h or 90m")?;
    match time <= SECONDS_MAX {
        true => Ok(time),
        false => Err(format!("'{text}' is more than 100 years")),
    }
}

/// A hundred years.
const SECONDS_MAX: u64 = 36_525 * 86_400;

fn parse_key(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    match (3..=128).contains(&text.len()) && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("an access key has 3 to 128 letters, digits, '_', '.' and '-'".to_owned()),
    }
}

/// A secret that signatures can be made with.
pub fn parse_secret(text: &str) -> Result<String, String> {
    match (8..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("a secret has 8 to 256 characters of ASCII, without spaces".to_owned()),
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@-".contains(&byte);
    match (1..=64).contains(&text.len()) && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("a user's name has 1 to 64 letters, digits, '_', '.', '@' and '-'".to_owned()),
    }
}

fn parse_id(text: &str) -> Result<String, String> {
    match (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("an ID has 1 to 128 characters of ASCII, without spaces".to_owned()),
    }
}

fn parse_text(text: &str) -> Result<String, String> {
    match (1..=256).contains(&text.len()) && !text.chars().any(char::is_control) {
        true => Ok(text.to_owned()),
        false => Err("1 to 256 bytes, without control characters".to_owned()),
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text).map(|bytes| bytes as u64)
}

fn bucket_name(text: &str) -> Result<BucketName, String> {
    BucketName::new(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_keys_have_a_unit_and_a_bound() {
        assert_eq!(parse_end("30d"), Ok(30 * 86_400));
        assert_eq!(parse_end("12h"), Ok(43_200));
        assert_eq!(parse_end("90m"), Ok(5400));
        for wrong in ["", "d", "30", "0d", "30s", "36526d", "99999999999999999999d", "-1d"] {
            assert!(parse_end(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_and_secrets_are_as_signatures_take_them() {
        assert!(parse_key("AKIA_x.1-").is_ok());
        assert!(parse_key("ab").is_err() && parse_key("a/b/c").is_err());
        assert!(parse_secret("12345678/+").is_ok());
        assert!(parse_secret("1234567").is_err() && parse_secret("1234 5678").is_err());
    }
}
