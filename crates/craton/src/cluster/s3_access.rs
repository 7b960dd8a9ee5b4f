//! [`S3Access`]: how clients reach S3, as the command line says it when a cluster is made.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use object_gateway::Tls;
use roles::config::{BucketDefaults, Gateway};
use runtime::Duration;

use crate::exit::{Done, Failure, io};
use crate::upkeep::args::parse_time;

/// How clients reach S3.
#[derive(Args, Clone, Default, Debug)]
pub struct S3Access {
    /// Address for S3 [default: a free port of 127.0.0.1]; with one that other machines reach,
    /// --s3-tls or --s3-plain is needed
    #[arg(long, value_name = "ADDRESS")]
    pub s3_listen: Option<SocketAddr>,
    /// S3 over TLS: a directory with server-cert.pem and server-key.pem, which may be replaced at any
    /// time
    #[arg(long, value_name = "DIR", conflicts_with = "s3_plain")]
    pub s3_tls: Option<PathBuf>,
    /// S3 over plain HTTP, to other machines too: all on the way can read it
    #[arg(long)]
    pub s3_plain: bool,
    /// Domain below which a host's name is a bucket [default: localhost]
    #[arg(long, value_name = "NAME", value_parser = parse_domain)]
    pub s3_domain: Option<String>,
    /// Region, as clients see it; requests may be signed for any [default: us-east-1]
    #[arg(long, value_name = "NAME")]
    pub s3_region: Option<String>,
    /// Take signatures of version 2, as of old clients
    #[arg(long)]
    pub s3_v2: bool,
    /// Settings of new buckets: 'aws' has no ACLs, and blocks what is public and SSE-C; 'classic'
    /// does neither [default: aws]
    #[arg(long, value_name = "SETTINGS")]
    pub s3_defaults: Option<Defaults>,
    /// Write each request as it ends to access.jsonl in the directory of the gateway's log
    #[arg(long)]
    pub s3_access_log: bool,
    /// Length of a day of lifecycle, as 24h, 10m or 2s: shorter for tests alone, as all objects expire
    /// as much sooner [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub lifecycle_day: Option<Duration>,
}

/// Settings of new buckets.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defaults {
    /// As at AWS today.
    Aws,
    /// As older servers have them.
    Classic,
}

impl From<Defaults> for BucketDefaults {
    fn from(defaults: Defaults) -> BucketDefaults {
        match defaults {
            Defaults::Aws => BucketDefaults::Aws,
            Defaults::Classic => BucketDefaults::Classic,
        }
    }
}

fn parse_domain(text: &str) -> Result<String, String> {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    match (1..=253).contains(&text.len()) && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("a domain has lower-case letters, digits, dots and hyphens".to_owned()),
    }
}

impl S3Access {
    /// Finds causes that would stop the first start, before anything is written.
    pub fn check(&self) -> Done {
        let is_open = self.s3_tls.is_none() && !self.s3_plain;
        if let Some(addr) = self.s3_listen.filter(|addr| is_open && !addr.ip().is_loopback()) {
            return Err(Failure::usage(format!(
                "--s3-listen {addr} can be reached from other machines: give --s3-tls DIR with \
                 server-cert.pem and server-key.pem, or --s3-plain for HTTP that all on the way can \
                 read"
            )));
        }
        if let Some(dir) = &self.s3_tls {
            read_tls(dir)?;
        }
        Ok(())
    }

    /// Writes it into the configuration of a gateway that is new.
    pub fn apply(&self, config: &mut Gateway) -> Done {
        if let Some(dir) = &self.s3_tls {
            let dir = std::fs::canonicalize(dir).map_err(|error| io("open", dir, &error))?;
            config.tls = Some(dir);
        }
        config.plain |= self.s3_plain;
        config.allow_v2 |= self.s3_v2;
        config.access_log |= self.s3_access_log;
        if let Some(domain) = &self.s3_domain {
            config.domains = vec![domain.clone()];
        }
        if let Some(region) = &self.s3_region {
            config.region.clone_from(region);
        }
        if let Some(defaults) = self.s3_defaults {
            config.defaults = defaults.into();
        }
        if let Some(day) = self.lifecycle_day {
            config.lifecycle_day_ms = day.as_millis() as u64;
        }
        Ok(())
    }

    /// The flag that says otherwise than a gateway's configuration does; the address apart.
    pub fn contradicts(&self, config: &Gateway) -> Option<&'static str> {
        let mut asked = config.clone();
        if self.apply(&mut asked).is_err() || asked.tls != config.tls {
            return Some("--s3-tls");
        }
        let flags = [
            ("--s3-plain", asked.plain != config.plain),
            ("--s3-v2", asked.allow_v2 != config.allow_v2),
            ("--s3-access-log", asked.access_log != config.access_log),
            ("--s3-domain", asked.domains != config.domains),
            ("--s3-region", asked.region != config.region),
            ("--s3-defaults", asked.defaults != config.defaults),
            ("--lifecycle-day", asked.lifecycle_day_ms != config.lifecycle_day_ms),
        ];
        flags.into_iter().find(|(_, differs)| *differs).map(|(flag, _)| flag)
    }
}

/// The certificate and the key of a directory of TLS.
pub fn tls_files(dir: &Path) -> [PathBuf; 2] {
    ["server-cert.pem", "server-key.pem"].map(|name| dir.join(name))
}

/// Reads them.
pub fn read_tls_files(dir: &Path) -> Result<[Vec<u8>; 2], Failure> {
    let [certificate, key] =
        tls_files(dir).map(|path| std::fs::read(&path).map_err(|error| io("read", &path, &error)));
    Ok([certificate?, key?])
}

/// TLS with what a directory has.
pub fn read_tls(dir: &Path) -> Result<Tls, Failure> {
    let [certificate, key] = read_tls_files(dir)?;
    let unusable = |error| Failure::setup(format!("{}: {error}", dir.display()));
    Tls::new(&certificate, &key).map_err(unusable)
}

/// Refuses flags that say otherwise than a cluster's gateway does.
pub fn refuse_other(asked: &S3Access, (config, at): (&Gateway, SocketAddr)) -> Done {
    let flag = match asked.s3_listen.is_some_and(|listen| listen != at) {
        true => Some("--s3-listen"),
        false => asked.contradicts(config),
    };
    match flag {
        None => Ok(()),
        Some(flag) => {
            let files = match flag {
                "--lifecycle-day" => "each gateway.toml and object-server.toml",
                _ => "each gateway.toml",
            };
            let and_book = match flag {
                "--s3-listen" => ", and cluster.json",
                _ => "",
            };
            Err(Failure::usage(format!(
                "how S3 is reached is said when a cluster is made, at {at} here: leave {flag} out, or \
             change {files} in the directory{and_book}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Gateway {
        let text = "id = \"gw1\"\nlisten = \"127.0.0.1:9000\"\nmasters = [\"127.0.0.1:7000\"]\n\
                    s3_keys = \"keys\"\n";
        toml::from_str(text).expect("it is one")
    }

    #[test]
    fn what_is_said_again_is_no_contradiction() {
        let said = S3Access {
            s3_plain: true,
            s3_v2: true,
            s3_access_log: true,
            s3_domain: Some("s3.example.com".to_owned()),
            s3_region: Some("eu".to_owned()),
            s3_defaults: Some(Defaults::Classic),
            lifecycle_day: Some(Duration::from_secs(2)),
            ..S3Access::default()
        };
        let mut made = config();
        said.apply(&mut made).expect("it fits");
        assert_eq!(said.contradicts(&made), None);
        assert_eq!(S3Access::default().contradicts(&made), None);
        assert_eq!(said.contradicts(&config()), Some("--s3-plain"));
        let other = S3Access { s3_region: Some("us".to_owned()), ..said };
        assert_eq!(other.contradicts(&made), Some("--s3-region"));
        let day = Some(Duration::from_secs(3600));
        let other = S3Access { lifecycle_day: day, ..S3Access::default() };
        assert_eq!(other.contradicts(&made), Some("--lifecycle-day"));
        let refused = refuse_other(&other, (&made, made.listen)).expect_err("another day");
        assert!(refused.message.contains("object-server.toml in the directory"), "{refused}");
        let at = "127.0.0.1:9000".parse().expect("an address");
        let elsewhere = S3Access {
            s3_listen: Some("127.0.0.1:9001".parse().expect("an address")),
            ..S3Access::default()
        };
        let refused = refuse_other(&elsewhere, (&made, at)).expect_err("it is elsewhere");
        assert!(refused.to_string().contains("leave --s3-listen out"), "{refused}");
    }

    #[test]
    fn other_machines_need_tls_or_a_word() {
        let listen = Some("192.0.2.1:9000".parse().expect("an address"));
        let open = S3Access { s3_listen: listen, ..S3Access::default() };
        assert!(open.check().expect_err("it is open").to_string().contains("--s3-tls"));
        let plain = S3Access { s3_plain: true, ..open };
        assert!(plain.check().is_ok());
    }
}
