//! The decoders of the binary's own files and of the HTTP edge, which the simulator does not link, as
//! in `sim::fuzz`.

use sim::fuzz::{Target, target};

const TARGETS: [Target; 7] = [
    target("s3_envelope", object_gateway::fuzz_envelope, "crates/object-gateway/corpus/envelope/"),
    target("s3_key_file", object_gateway::fuzz_key_file, "crates/object-gateway/corpus/key_file/"),
    target("s3_chunked", object_gateway::fuzz_chunked, "crates/object-gateway/corpus/chunked/"),
    target("s3_policy", object_policy::fuzz::fuzz_policy, "crates/object-policy/corpus/policy/"),
    target("file_config", roles::config::fuzz_config, "crates/roles/corpus/config/"),
    target("file_cluster_json", crate::cluster::fuzz_book, "crates/craton/corpus/cluster_json/"),
    target("file_http", roles::http::fuzz_http, "crates/roles/corpus/http/"),
];

#[test]
fn decoders_stand_their_corpus_and_changed_copies_of_it() {
    sim::fuzz::run(&TARGETS);
}
