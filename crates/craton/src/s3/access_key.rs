//! New access keys, from the command line or at random.

use object_gateway::KeyFile;
use object_proto::NewKey;
use runtime::Env;

use super::args::KeyArgs;
use super::policy;
use crate::exit::Failure;
use crate::role::objects::{random_key, random_secret};

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
