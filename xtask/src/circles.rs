//! Circles of files: files of a crate of which each imports, over others, itself. A service that is
//! to leave a crate must first be in no circle with what stays.
//!
//! An import is a path in code (tests apart) that begins with `crate`, `self`, `super`, a module or
//! an imported name, and leads to an item of another file. Names that a module re-exports lead to the
//! file that defines them. Methods, and paths inside macros, are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

/// Files in circles, by crate; a crate that is not named has none. The numbers only go down: a
/// change that makes one smaller writes the new one here.
const FILES_IN_CIRCLES: &[(&str, usize)] = &[
    ("chunkserver", 3),
    ("chunkstore", 8),
    ("client", 5),
    ("craton", 18),
    ("master", 2),
    ("master-consensus", 7),
    ("master-namespace", 6),
    ("master-stream", 3),
    ("roles", 2),
    ("runtime", 17),
    ("sim", 2),
    ("table", 10),
    ("transport", 6),
    ("wire", 8),
];

/// Checks every crate.
pub fn check(breaches: &mut Vec<String>) {
    for entry in fs::read_dir("crates").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let circles = match circles_of(&entry.path().join("src")) {
            Ok(circles) => circles,
            Err(why) => {
                breaches.push(why);
                continue;
            }
        };
        let limit = FILES_IN_CIRCLES.iter().find(|(of, _)| *of == name).map_or(0, |(_, n)| *n);
        let count: usize = circles.iter().map(Vec::len).sum();
        if count > limit {
            let shown: Vec<_> = circles.iter().map(|circle| circle.join(", ")).collect();
            breaches.push(format!(
                "crate {name} has {count} files in circles, {limit} at most: {}",
                shown.join("; ")
            ));
        } else if count < limit {
            breaches
                .push(format!("crate {name} has {count} files in circles: set its limit to that"));
        }
    }
}

/// Prints the circles of a crate, one a line.
pub fn print(name: &str) -> bool {
    match circles_of(&Path::new("crates").join(name).join("src")) {
        Ok(circles) => circles.iter().for_each(|circle| println!("{}", circle.join(" "))),
        Err(why) => {
            eprintln!("circles: {why}");
            return false;
        }
    }
    true
}

/// The circles of the crate whose sources are below `src`, each with its files.
fn circles_of(src: &Path) -> Result<Vec<Vec<String>>, String> {
    let mut tree = Tree::default();
    for root in ["lib.rs", "main.rs"] {
        let path = src.join(root);
        if path.is_file() {
            tree.read_root(&path)?;
        }
    }
    let edges = tree.edges();
    let count = tree.files.len();
    let shown = |file: usize| tree.shown(src, file);
    let reach: Vec<BTreeSet<usize>> = (0..count).map(|file| reachable(&edges, file)).collect();
    let mut circles = Vec::new();
    let mut seen = BTreeSet::new();
    for file in 0..count {
        if seen.contains(&file) || !reach[file].contains(&file) {
            continue;
        }
        let same = |&other: &usize| reach[file].contains(&other) && reach[other].contains(&file);
        let circle: Vec<usize> = (0..count).filter(same).collect();
        seen.extend(circle.iter().copied());
        circles.push(circle.into_iter().map(shown).collect());
    }
    Ok(circles)
}

fn reachable(edges: &BTreeSet<(usize, usize)>, from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for &(_, to) in edges.range((file, 0)..=(file, usize::MAX)) {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

/// A module: a file, or a block within one.
#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    root: usize,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// Names that stand for a path, and whether other modules see them.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths in its code.
    paths: Vec<Vec<String>>,
}

#[derive(Default)]
struct Tree {
    files: Vec<PathBuf>,
    modules: Vec<Module>,
}

impl Tree {
    fn read_root(&mut self, path: &Path) -> Result<(), String> {
        let root = self.modules.len();
        self.read_file(path, None, root, path.parent().unwrap_or(Path::new("")))
    }

    /// `below` is where the files of the module's own modules are.
    fn read_file(
        &mut self,
        path: &Path,
        parent: Option<usize>,
        root: usize,
        below: &Path,
    ) -> Result<(), String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let parsed =
            syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = self.files.len();
        self.files.push(path.to_owned());
        self.read_items(&parsed.items, Module { file, parent, root, ..Module::default() }, below)
    }

    fn read_items(&mut self, items: &[Item], module: Module, below: &Path) -> Result<(), String> {
        let id = self.modules.len();
        let (file, root) = (module.file, module.root);
        self.modules.push(module);
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            match item {
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    let child = self.modules.len();
                    self.modules[id].children.insert(name.clone(), child);
                    let folder = below.join(&name);
                    match &inner.content {
                        Some((_, items)) => {
                            let parent = Some(id);
                            let module = Module { file, parent, root, ..Module::default() };
                            self.read_items(items, module, &folder)?;
                        }
                        None => {
                            let flat = below.join(format!("{name}.rs"));
                            let path = if flat.is_file() { flat } else { folder.join("mod.rs") };
                            self.read_file(&path, Some(id), root, &folder)?;
                        }
                    }
                }
                Item::Use(item) => self.modules[id].note_use(item),
                other => {
                    self.modules[id].items.extend(name_of(other));
                    let mut paths = Paths(Vec::new());
                    paths.visit_item(other);
                    self.modules[id].paths.extend(paths.0);
                }
            }
        }
        Ok(())
    }

    /// A file's path below `src`.
    fn shown(&self, src: &Path, file: usize) -> String {
        let path = &self.files[file];
        path.strip_prefix(src).unwrap_or(path).display().to_string()
    }

    /// Which file imports which.
    fn edges(&self) -> BTreeSet<(usize, usize)> {
        let mut edges = BTreeSet::new();
        for (id, module) in self.modules.iter().enumerate() {
            let reexports = module.imports.iter().filter(|(name, _)| !self.is_passed_on(id, name));
            let paths = module.paths.iter().chain(reexports.map(|(_, path)| path));
            // A single name in code is no module.
            let paths =
                paths.filter(|path| path.len() > 1 || !module.children.contains_key(&path[0]));
            for path in paths {
                edges.extend(self.resolve(id, path, 0).map(|to| (module.file, to)));
            }
        }
        edges.retain(|(from, to)| from != to);
        edges
    }

    /// Whether a name is imported for others alone: no path of its module uses it.
    fn is_passed_on(&self, id: usize, name: &str) -> bool {
        let module = &self.modules[id];
        !module.paths.iter().any(|path| path[0] == name)
    }

    /// The file that defines what `path` stands for in a module; `None` outside of the crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        if depth > 16 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let module = &self.modules[from];
        match first.as_str() {
            "crate" => self.resolve_in(module.root, rest, depth),
            "self" => self.resolve_in(from, rest, depth),
            "super" => {
                let up = module.parent?;
                match rest.first().map(String::as_str) {
                    Some("super") => self.resolve(up, rest, depth + 1),
                    _ => self.resolve_in(up, rest, depth),
                }
            }
            _ => self.find(from, path, depth),
        }
    }

    fn resolve_in(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        if path.is_empty() {
            return Some(self.modules[module].file);
        }
        self.find(module, path, depth).or(Some(self.modules[module].file))
    }

    /// As a name of that module, or `None`.
    fn find(&self, id: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let module = &self.modules[id];
        if let Some(&child) = module.children.get(first) {
            return self.resolve_in(child, rest, depth + 1);
        }
        if module.items.contains(first) {
            return Some(module.file);
        }
        if let Some(stands_for) = module.imports.get(first) {
            if stands_for[0] == *first && stands_for.len() == 1 {
                return None;
            }
            let whole: Vec<String> = stands_for.iter().chain(rest).cloned().collect();
            return self.resolve(id, &whole, depth + 1);
        }
        let through = module.globs.iter().filter(|glob| depth < 8 && !glob.is_empty());
        through.map(|glob| glob.iter().chain(path).cloned().collect::<Vec<_>>()).find_map(|whole| {
            // A glob of what does not have the name says nothing about it.
            let (last, into) = whole.split_at(whole.len() - path.len());
            let target = self.module_at(id, last)?;
            self.find(target, into, depth + 4)
        })
    }

    /// The module that a path of modules stands for.
    fn module_at(&self, from: usize, path: &[String]) -> Option<usize> {
        let mut at = from;
        for (index, part) in path.iter().enumerate() {
            at = match part.as_str() {
                "crate" => self.modules[at].root,
                "self" => at,
                "super" => self.modules[at].parent?,
                name if index > 0 || self.modules[at].children.contains_key(name) => {
                    *self.modules[at].children.get(name)?
                }
                _ => return None,
            };
        }
        Some(at)
    }
}

impl Module {
    fn note_use(&mut self, item: &ItemUse) {
        let passed_on = !matches!(item.vis, Visibility::Inherited);
        self.note_tree(&item.tree, &mut Vec::new(), passed_on);
    }

    fn note_tree(&mut self, tree: &UseTree, before: &mut Vec<String>, passed_on: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_tree(&path.tree, before, passed_on);
                before.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_tree(tree, before, passed_on));
            }
            UseTree::Glob(_) => self.globs.push(before.clone()),
            UseTree::Name(name) => self.note_name(&name.ident, &name.ident, before, passed_on),
            UseTree::Rename(it) => self.note_name(&it.ident, &it.rename, before, passed_on),
        }
    }

    fn note_name(
        &mut self,
        name: &syn::Ident,
        known_as: &syn::Ident,
        before: &[String],
        passed_on: bool,
    ) {
        let mut path = before.to_vec();
        let mut known_as = known_as.to_string();
        if name == "self" {
            known_as = before.last().cloned().unwrap_or_default();
        } else {
            path.push(name.to_string());
        }
        if path.is_empty() {
            return;
        }
        if !passed_on {
            self.paths.push(path.clone());
        }
        self.imports.insert(known_as, path);
    }
}

/// Paths of more than a name.
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    /// `pub(super)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Const(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::Type(it) => &it.ident,
        _ => return None,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let name = format!("craton-circles-{}-{:p}", std::process::id(), files);
        let src = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = src.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        let found = circles_of(&src).expect("parses");
        fs::remove_dir_all(&src).expect("removed");
        found
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let root = ("lib.rs", "mod a; mod b; mod c;");
        let a = ("a.rs", "use crate::b::B; pub struct A(B);");
        let b = ("b.rs", "pub struct B; fn of(a: crate::a::A) {}");
        let c = ("c.rs", "use super::a::A;");
        assert_eq!(circles(&[root, a, b, c]), [["a.rs", "b.rs"]]);
        let one_way = ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }");
        assert!(circles(&[root, a, one_way, c]).is_empty());
    }

    #[test]
    fn who_may_see_an_item_is_no_import() {
        let root = ("lib.rs", "mod m;");
        let folder = ("m/mod.rs", "mod x; use x::X; pub struct M(X);");
        let x = ("m/x.rs", "pub(super) struct X { pub(in crate::m) x: u8 }");
        assert!(circles(&[root, folder, x]).is_empty());
    }

    #[test]
    fn names_that_are_passed_on_lead_to_their_file() {
        let root = ("lib.rs", "mod m; mod user;");
        let folder = ("m/mod.rs", "mod x; mod y; pub use x::X; pub use y::*;");
        let x = ("m/x.rs", "pub struct X;");
        let y = ("m/y.rs", "use super::X; pub struct Y(X);");
        let user = ("user.rs", "use crate::m::{X, Y};");
        assert!(circles(&[root, folder, x, y, user]).is_empty());
        let back = ("m/x.rs", "pub struct X(super::Y);");
        assert_eq!(circles(&[root, folder, back, y, user]), [["m/x.rs", "m/y.rs"]]);
    }
}
