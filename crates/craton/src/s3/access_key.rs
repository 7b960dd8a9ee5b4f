//! New access keys, from the command line or at random.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use object_gateway::KeyFile;
use object_proto::NewKey;
use runtime::Env;

use super::args::{KeyArgs, parse_secret};
use super::policy;
use crate::exit::{Failure, io};
use crate::output::warn;
use crate::role::objects::{random_key, random_secret};

/// A new key with its secret.
pub struct Made {
    /// Its secret, in the clear.
    pub secret: String,
    /// The key.
    pub key: NewKey,
}

/// Bytes of a file with a secret at most: the secret, and the end of its line.
const FILE_MAX: u64 = 258;

impl KeyArgs {
    /// The secret that was given, on the command line or in a file. It is read before there is a client,
    /// whose tasks would wait for standard input.
    pub fn secret(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.secret_key_file else {
            if self.secret_key.is_some() {
                warn(
                    "--secret-key shows the secret to all users of this host, and leaves it in the \
                     shell's history: --secret-key-file takes it from a file or standard input",
                );
            }
            return Ok(self.secret_key.clone());
        };
        let read = |from: &mut dyn Read| {
            let mut text = String::new();
            from.take(FILE_MAX + 1).read_to_string(&mut text).map(|_| text)
        };
        let text = match path == Path::new("-") {
            true => read(&mut std::io::stdin().lock()),
            false => File::open(path).and_then(|mut file| read(&mut file)),
        };
        let text = text.map_err(|error| io("read", path, &error))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let secret = parse_secret(line.strip_suffix('\r').unwrap_or(line));
        secret.map(Some).map_err(|what| Failure::setup(format!("{}: {what}", path.display())))
    }

    /// Makes it, with the secret of [`KeyArgs::secret`] or a random one. `policy` is the path of a policy;
    /// the key ends `expires_us`.
    pub fn make(
        &self,
        env: &Env,
        keys: &KeyFile,
        secret: Option<&str>,
        policy: Option<&Path>,
        expires_us: Option<u64>,
    ) -> Result<Made, Failure> {
        let id = self.access_key.clone().unwrap_or_else(|| random_key(env));
        let secret = secret.map_or_else(|| random_secret(env), str::to_owned);
        let policy = policy.map(policy::read_identity).transpose()?;
        let mut nonce = [0; 12];
        env.fill_secret(&mut nonce);
        let wrapped_secret = keys.wrap(&id, &secret, nonce);
        Ok(Made { secret, key: NewKey { id, wrapped_secret, expires_us, policy } })
    }
}

#[cfg(test)]
mod tests;
