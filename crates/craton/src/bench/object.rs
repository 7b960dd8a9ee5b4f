//! `craton bench object`: where S3 is, and the table of results.

use std::net::SocketAddr;

use bench::{ObjectReport, ObjectRow};

use super::csv::Sink;
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::{print_table, table};
use crate::role::objects::Access;
use crate::s3;

/// Scheme of the endpoints that can be measured.
const SCHEME: &str = "http://";

/// The administrator's key, and the address of the cluster's gateways.
pub fn reached(connection: &Connection) -> Result<(Access, SocketAddr), Failure> {
    let access = s3::reached(connection)?;
    let addr = access.endpoint.strip_prefix(SCHEME).and_then(|addr| addr.parse().ok());
    match addr {
        Some(addr) => Ok((access, addr)),
        None => Err(Failure::usage(format!(
            "S3 at {} cannot be measured: it is reached over HTTP at an address; give --cluster with \
             the directory of a cluster without TLS",
            access.endpoint
        ))),
    }
}

/// Shows a report.
pub fn show((report, sink): (ObjectReport, Sink)) -> Done {
    sink.put(&report, print)
}

fn print(report: &ObjectReport) -> Done {
    let mut out = table(&[
        "what",
        "size",
        "depth",
        "ops/s",
        "MB/s",
        "mean us",
        "p99",
        "cpu us/op",
        "core",
        "ratio",
        "disk B/B",
        "by role",
    ]);
    report.results.iter().for_each(|row| _ = out.add_row(cells(row)));
    print_table(out, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
}

fn cells(row: &ObjectRow) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let roles = row.cpu_us_per_op.iter().filter(|(_, us)| **us >= 0.05);
    let roles: Vec<_> = roles.map(|(role, us)| format!("{role} {us:.1}")).collect();
    vec![
        row.op.to_owned(),
        row.size.to_string(),
        row.concurrency.to_string(),
        number(Some(row.ops_s), 0),
        number(row.mb_s, 1),
        number(Some(row.mean_us), 1),
        number(Some(row.p99_us), 1),
        number(Some(row.cpu_us()), 1),
        number(Some(row.core_cpu_us), 1),
        number(Some(row.ratio), 2),
        number(row.disk_bytes_per_byte, 2),
        roles.join(", "),
    ]
}
