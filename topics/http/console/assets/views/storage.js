import { html } from "../vendor/htm-preact.js";
import { Page } from "../parts.js";
export const Storage = () => html`<${Page} title="Storage" />`;
