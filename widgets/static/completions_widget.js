export default widgetOf(CompletionsView);
