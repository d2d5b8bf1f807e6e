// What the tests of the console do in its page.
globalThis.said = () => document.body.innerText;
globalThis.has = (text) => said().includes(text);
globalThis.element = (selector, text) => [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility())
  .find((one) => (one.getAttribute('aria-label') ?? one.textContent).trim().startsWith(text));
globalThis.button = (text) => {
  const open = document.querySelector('dialog');
  const found = [...(open ?? document).querySelectorAll('button')].find((one) => !one.disabled && (one.getAttribute('aria-label') ?? one.textContent).trim() === text);
  return found ?? null;
};
globalThis.press = (text) => { button(text).click(); return true };
globalThis.field = (label) => {
  const all = [...(document.querySelector('dialog') ?? document).querySelectorAll('label')];
  const found = all.find((one) => one.textContent.trim() === label) ?? all.find((one) => one.textContent.trim().startsWith(label));
  return found ? document.getElementById(found.htmlFor) : null;
};
globalThis.fill = (label, value) => {
  const into = field(label);
  const kind = {SELECT: HTMLSelectElement, TEXTAREA: HTMLTextAreaElement}[into.tagName] ?? HTMLInputElement;
  Object.getOwnPropertyDescriptor(kind.prototype, 'value').set.call(into, value);
  into.dispatchEvent(new Event(into.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}));
  return true;
};
globalThis.figure = (name) => [...document.querySelectorAll('dt')].find((one) => one.textContent === name)?.nextElementSibling?.textContent;
globalThis.rows = (label) => [...document.querySelectorAll(`[aria-label="Table: ${label}"] tbody tr:not(.gap)`)].map((row) => [...row.children].map((cell) => cell.textContent.trim()));
globalThis.state = () => ({hash: location.hash, said: said().slice(0, 2500)});
