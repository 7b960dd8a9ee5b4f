mod basics;
mod facts;
mod kept;
mod locks;
mod owners;
mod support;
mod uploads;
