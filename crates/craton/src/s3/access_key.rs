//! New access keys, from the command line or at random.

use clap::Args;
use object_gateway::KeyFile;
use object_proto::NewKey;
use runtime::Env;

use super::policy;
use crate::exit::Failure;
use crate::role::objects::{random_key, random_secret};

/// A new access key.
#[derive(Args, Clone, Debug)]
pub struct KeyArgs {
    /// Its public part [default: random]
    #[arg(long, value_name = "KEY", requires = "secret_key", value_parser = parse_key)]
    pub access_key: Option<String>,
    /// Its secret
    #[arg(long, value_name = "SECRET", requires = "access_key", value_parser = parse_secret)]
    pub secret_key: Option<String>,
}

/// A new key with its secret.
pub struct Made {
    /// Its secret, in the clear.
    pub secret: String,
    /// The key.
    pub key: NewKey,
}

impl KeyArgs {
    /// Makes it. `policy` is the path of a policy; the key ends `expires_us`.
    pub fn make(
        &self,
        env: &Env,
        keys: &KeyFile,
        policy: Option<&std::path::Path>,
        expires_us: Option<u64>,
    ) -> Result<Made, Failure> {
        let id = self.access_key.clone().unwrap_or_else(|| random_key(env));
        let secret = self.secret_key.clone().unwrap_or_else(|| random_secret(env));
        let policy = policy.map(policy::read_identity).transpose()?;
        let mut nonce = [0; 12];
        env.fill_secret(&mut nonce);
        let wrapped_secret = keys.wrap(&id, &secret, nonce);
        Ok(Made { secret, key: NewKey { id, wrapped_secret, expires_us, policy } })
    }
}

/// Ends of keys: days, hours, minutes.
pub fn parse_end(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time: such as 30d, 12h or 90m");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (count, unit) = text.split_at(unit_at);
    let seconds: u64 = match unit {
        "d" => 86_400,
        "h" => 3600,
        "m" => 60,
        _ => return Err(wrong()),
    };
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let time = count.checked_mul(seconds).filter(|time| (1..=SECONDS_MAX).contains(time));
    time.ok_or_else(|| format!("'{text}' is not between a minute and 100 years"))
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

fn parse_secret(text: &str) -> Result<String, String> {
    match (8..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("a secret has 8 to 256 characters of ASCII, without spaces".to_owned()),
    }
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
