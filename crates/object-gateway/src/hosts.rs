//! [`Domains`]: which hosts name a bucket (`bucket.localhost`).

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// Domains below which a host's name is a bucket.
#[derive(Clone, Debug)]
pub struct Domains(Vec<String>);

impl Domains {
    /// These domains.
    pub fn new(domains: &[String]) -> Domains {
        Domains(domains.iter().map(|domain| domain.to_ascii_lowercase()).collect())
    }

    /// The bucket in a Host header. Hosts outside the domains name none: a machine's own name, an
    /// address, a balancer.
    pub fn bucket_of<'a>(&self, host: &'a str) -> Option<&'a str> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let small = name.to_ascii_lowercase();
        self.0.iter().find_map(|domain| {
            let bucket = small.strip_suffix(domain.as_str())?.strip_suffix('.')?;
            (!bucket.is_empty()).then(|| &name[..bucket.len()])
        })
    }
}

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let virtual_host = VirtualHost::new(host);
        Ok(match self.bucket_of(host) {
            Some(bucket) => virtual_host.with_bucket(bucket),
            None => virtual_host,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_below_a_domain_name_a_bucket() {
        let domains = Domains::new(&["localhost".to_owned(), "S3.example.com".to_owned()]);
        for (host, bucket) in [
            ("localhost", None),
            ("localhost:9000", None),
            ("b.localhost", Some("b")),
            ("b.localhost:9000", Some("b")),
            ("a.b.LocalHost:1", Some("a.b")),
            ("b.s3.example.com", Some("b")),
            (".localhost", None),
            ("blocalhost", None),
            ("127.0.0.1:9000", None),
            ("[::1]:9000", None),
            ("", None),
            ("other", None),
        ] {
            assert_eq!(domains.bucket_of(host), bucket, "{host}");
        }
    }
}
