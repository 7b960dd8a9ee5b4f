use proptest::prelude::*;

use super::*;

const CHUNKSERVER: &str = r#"
id = "cs1"
listen = "127.0.0.1:7101"
masters = ["127.0.0.1:7001"]

[[stores]]
path = "store"
"#;

const MASTER: &str = r#"
id = "m1"
raft_id = 1
cluster = "clu_7f"
listen = "127.0.0.1:7001"
data_dir = "data"

[[peers]]
raft_id = 1
id = "m1"
addr = "127.0.0.1:7001"
"#;

fn refused<T: Config + std::fmt::Debug>(text: &str, want: &str) {
    let error = parse::<T>(text).expect_err(want);
    assert!(error.contains(want), "'{error}' does not say '{want}'");
}

#[test]
fn defaults_fill_what_is_not_there() {
    let config: Chunkserver = parse(CHUNKSERVER).expect("it is complete");
    assert_eq!((config.heartbeat_ms, config.stores[0].unit_kib), (250, 1024));
    let config: Master = parse(MASTER).expect("it is complete");
    assert_eq!((config.namespace_partitions, config.log), (1, Logging::default()));
}

#[test]
fn paths_start_at_the_file() {
    let mut config: Chunkserver = parse(CHUNKSERVER).expect("it is complete");
    config.resolve(Path::new("/etc/craton"));
    assert_eq!(config.stores[0].path, Path::new("/etc/craton/store"));
}

#[test]
fn errors_name_line_and_key() {
    refused::<Chunkserver>(&CHUNKSERVER.replace("listen", "lisen"), "line 3: unknown key `lisen`");
    refused::<Chunkserver>(&format!("{CHUNKSERVER}colour = 1"), "unknown key `colour`");
    refused::<Chunkserver>(&CHUNKSERVER.replace("id = ", "# "), "the key `id` is missing");
    refused::<Chunkserver>(&CHUNKSERVER.replace("127.0.0.1:7101", "here"), "line 3: ");
    refused::<Chunkserver>(&CHUNKSERVER.replace("127.0.0.1:7101", "0.0.0.0:7101"), "key_file");
    refused::<Chunkserver>(&CHUNKSERVER.replace("cs1", "../cs1"), "id = '../cs1'");
    refused::<Chunkserver>(&format!("{CHUNKSERVER}unit_kib = 3"), "stores.unit_kib = 3");
    let twice = format!("{CHUNKSERVER}[[stores]]\npath = \"store\"");
    refused::<Chunkserver>(&twice, "twice");
    refused::<Master>(&MASTER.replace("clu_7f", "7f"), "clu_");
    refused::<Master>(&format!("election_ms = 60\n{MASTER}"), "election_ms = 60");
    refused::<Master>(&MASTER.replace("raft_id = 1\nid", "raft_id = 2\nid"), "this master itself");
    refused::<Master>("id = ", "line 1: ");
}

#[test]
fn written_configuration_reads_back() {
    let config: Master = parse(MASTER).expect("it is complete");
    let text = toml::to_string(&config).expect("it can be written");
    assert_eq!(parse::<Master>(&text), Ok(config));
    let config: Chunkserver = parse(CHUNKSERVER).expect("it is complete");
    let text = toml::to_string(&config).expect("it can be written");
    assert_eq!(parse::<Chunkserver>(&text), Ok(config));
}

#[test]
fn documented_examples_are_valid() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations");
    read::<Master>(&docs.join("master.toml")).expect("master.toml");
    read::<Chunkserver>(&docs.join("chunkserver.toml")).expect("chunkserver.toml");
    read::<BlockManager>(&docs.join("block-manager.toml")).expect("block-manager.toml");
    read::<BlockServer>(&docs.join("block-server.toml")).expect("block-server.toml");
    read::<Frontend>(&docs.join("frontend.toml")).expect("frontend.toml");
    read::<Gateway>(&docs.join("gateway.toml")).expect("gateway.toml");
    read::<ObjectServer>(&docs.join("object-server.toml")).expect("object-server.toml");
    read::<ObjectManager>(&docs.join("object-manager.toml")).expect("object-manager.toml");
}

#[test]
fn gateways_are_checked() {
    let text = "id = \"x1\"\nlisten = \"127.0.0.1:9000\"\nmasters = [\"127.0.0.1:7001\"]\n\
                s3_keys = \"keys\"\n";
    let mut config: Gateway = parse(text).expect("it is complete");
    assert_eq!((config.copies, config.bodies_mib), (3, 64));
    // As files were before there were object servers.
    assert!(parse::<Gateway>(&format!("{text}lock_ms = 800")).is_ok());
    refused::<Gateway>(&format!("{text}shared = \"10.0.0.1:1\""), "shared = 10.0.0.1:1");
    config.resolve(Path::new("/etc/craton"));
    assert_eq!(config.s3_keys, Path::new("/etc/craton/keys"));
    refused::<Gateway>(&text.replace("127.0.0.1:9000", "10.0.0.1:9000"), "no loopback address");
    refused::<Gateway>(&format!("{text}copies = 0"), "copies = 0");
    refused::<Gateway>(&format!("{text}bodies_mib = 1"), "bodies_mib = 1");
    refused::<Gateway>(&text.replace("s3_keys", "s3_key"), "unknown key `s3_key`");
}

#[test]
fn object_servers_are_checked() {
    let text = "id = \"x1\"\nlisten = \"127.0.0.1:9000\"\nmasters = [\"127.0.0.1:7001\"]\n";
    let config: ObjectServer = parse(text).expect("it is complete");
    assert_eq!(config.copies, 3);
    // As files were before there were object managers.
    assert!(parse::<ObjectServer>(&format!("{text}lock_ms = 800")).is_ok());
    refused::<ObjectServer>(&text.replace(":9000", ":0"), "port 0");
    let open = text.replace("127.0.0.1:9000", "10.0.0.1:9000");
    refused::<ObjectServer>(&open, "key_file");
    refused::<ObjectManager>(&open, "key_file");
    let keyed = format!("{open}key_file = \"/key\"\n");
    assert!(parse::<ObjectServer>(&keyed).is_ok() && parse::<ObjectManager>(&keyed).is_ok());
    refused::<ObjectServer>(&format!("{text}copies = 6"), "copies = 6");
    let config: ObjectManager = parse(text).expect("it is complete");
    assert_eq!((config.copies, config.lock_ms), (3, 800));
    refused::<ObjectManager>(&text.replace(":9000", ":0"), "port 0");
    refused::<ObjectManager>(&format!("{text}copies = 6"), "copies = 6");
    refused::<ObjectManager>(&format!("{text}lock_ms = 1"), "lock_ms = 1");
}

#[test]
fn roles_of_the_block_service_are_checked() {
    let text = "id = \"x1\"\nlisten = \"127.0.0.1:7301\"\nmasters = [\"127.0.0.1:7001\"]\n";
    let config: BlockManager = parse(text).expect("it is complete");
    assert_eq!((config.copies, config.lock_ms, config.server_dead_ms), (3, 600, 450));
    parse::<BlockServer>(text).expect("it is complete");
    refused::<BlockManager>(&format!("{text}copies = 6"), "copies = 6 must be 1 to 5");
    refused::<BlockManager>(&text.replace("7301", "0"), "has no port");
    refused::<BlockServer>(&text.replace("127.0.0.1:7301", "10.0.0.1:7301"), "key_file");
    refused::<BlockServer>(&format!("{text}index_mib = 0"), "index_mib = 0");
    refused::<BlockServer>(&format!("{text}write_mib = 0"), "write_mib = 0");
    refused::<BlockServer>(&format!("{text}scrub_mib_s = 2000"), "scrub_mib_s = 2000");
    let text = text.replace("listen", "nbd");
    parse::<Frontend>(&text).expect("it is complete");
    let open = text.replace("127.0.0.1:7301", "0.0.0.0:7301");
    refused::<Frontend>(&open, "client certificates");
    let tls = "[tls]\ncertificate = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\n";
    let exports = "[exports]\ndata = [\"alice\"]\n\"*\" = [\"operator\"]\n";
    let full: Frontend = parse(&format!("{open}{tls}{exports}")).expect("it is complete");
    assert_eq!(full.exports["data"], ["alice"]);
    refused::<Frontend>(&format!("{open}{tls}"), "belong together");
    refused::<Frontend>(&format!("{text}{exports}"), "belong together");
    let long = format!("{text}nbd_unix = \"/{}\"\n", "x".repeat(107));
    refused::<Frontend>(&long, "too long for a socket");
    refused::<Frontend>(&text.replace("[\"127.0.0.1:7001\"]", "[]"), "masters is empty");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        fuzz_config(&bytes);
    }

    #[test]
    fn damaged_configurations_are_answered(
        at in any::<prop::sample::Index>(),
        patch in "[\\PC\n]{0,6}",
        cut in 0..6usize,
    ) {
        for text in [MASTER, CHUNKSERVER] {
            let at = at.index(text.len());
            let end = (at + cut).min(text.len());
            fuzz_config(format!("{}{patch}{}", &text[..at], &text[end..]).as_bytes());
        }
    }
}

#[test]
fn levels_are_checked() {
    use super::logging::check_level;
    assert!(check_level("info,master=debug").is_ok());
    assert!(check_level("off").is_ok());
    assert!(["loud", "", "info,master=loud"].iter().all(|bad| check_level(bad).is_err()));
}
